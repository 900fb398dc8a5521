// The gradient of the weight of a linear layer: the transposed gradient of its output ("slopes") times its input.
//
// Factors are bfloat16, products are by AMX tiles, and sums are float32; a slope may be the sum of two numbers. The order of
// sums depends only on the number of tokens.

#include "tiles.h"

#ifdef HAS_TILES

namespace {

constexpr int64_t BLOCK = GROUP;              // outputs, and columns, that are computed together
constexpr int64_t DEPTH = 512;                // tokens that are arranged at a time
constexpr int64_t STRIDE = DEPTH / 2 + SIDE;  // pairs of an output: a power of two would compete for the same cache lines
constexpr int64_t MOST_OUTPUTS = 128;         // outputs of a group, arranged as a whole because memory is read in lines
constexpr int64_t MOST_COLUMNS = 1024;        // the most columns that stay in a core's cache in the meantime
constexpr int64_t AHEAD = 32;                 // tokens by which slopes are prefetched
constexpr int64_t LARGE = 1 << 20;            // multiplications from which on several threads share them

// Gradients of the output, [tokens, outputs], and their rounding errors, or null.
struct Slopes {
    const bfloat16 *rounded, *lost;
    int64_t outputs, inputs;
};

// Pairs of the numbers of two lines: those at 0 to 3, 8 to 11, 16 to 19 and 24 to 27, and the others.
inline void pair_lines(Line first, Line second, Line *low, Line *high) {
    *low = _mm512_unpacklo_epi16(first, second);
    *high = _mm512_unpackhi_epi16(first, second);
}

// Copies the slopes of some outputs, for `count` tokens with a stride, as rows of pairs of tokens.
inline void arrange_slopes(const bfloat16 *slopes, int64_t stride, int64_t outputs, int64_t count, Pair *to) {
    for (int64_t input = 0; input < count; input += 2 * SIDE)
        for (int64_t i = 0; i < outputs; i += BLOCK) {
            Line low[SIDE], high[SIDE];
            auto read = [&](int64_t at) {
                const bfloat16 *from = slopes + at * stride + i;
                __builtin_prefetch(from + AHEAD * stride);
                return _mm512_maskz_loadu_epi16(at < count ? find_mask(outputs - i) : 0, from);
            };
            for (int k = 0; k < SIDE; k++) pair_lines(read(input + 2 * k), read(input + 2 * k + 1), low + k, high + k);
            transpose_lines(low);
            transpose_lines(high);
            for (int k = 0; k < SIDE; k++) {
                Pair *row = to + (i + k / 4 * 8 + k % 4) * STRIDE + input / 2;
                _mm512_store_si512(row, low[k]);
                _mm512_store_si512(row + 4 * STRIDE, high[k]);
            }
        }
}

// Copies some columns of states, [tokens, width], as rows of pairs of tokens: those of each pair.
inline void arrange_states(const bfloat16 *states, int64_t width, int64_t count, int64_t columns, Pair *to) {
    for (int64_t input = 0; input < (count + 2 * SIDE - 1) / (2 * SIDE) * (2 * SIDE); input += 2, to += BLOCK)
        for (int64_t i = 0; i < BLOCK; i += SIDE) {
            auto read = [&](int64_t at) {
                __mmask16 mask = at < count ? find_mask(columns - i) : 0;
                return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, states + at * width + i));
            };
            _mm512_store_si512(to + i, _mm512_or_si512(read(input), _mm512_slli_epi32(read(input + 1), 16)));
        }
}

// Writes a product of arranged slopes and states to its place in the gradient, or adds it to what is there, and prefetches
// the next place in the meantime.
inline void multiply_block(const Pair *slopes, const Pair *states, int64_t pairs, bool adds, int64_t rows, int64_t columns,
                           float *out, int64_t stride) {
    Operand left{slopes, STRIDE, SIDE * STRIDE, SIDE}, right{states, BLOCK, SIDE, SIDE * BLOCK};
    int64_t steps = pairs / SIDE;
    auto multiply = adds ? multiply_tiles<true, TOGETHER, true> : multiply_tiles<false, TOGETHER, true>;
    if (columns > BLOCK)
        for (int64_t i = 0; i < std::min(rows, BLOCK); i++)
            for (int64_t next : {BLOCK, BLOCK + SIDE}) __builtin_prefetch(out + i * stride + next, 0, 2);
    if (rows >= BLOCK && columns >= BLOCK) return multiply(left, right, steps, {out, stride, SIDE, SIDE * stride});
    float sums[BLOCK * BLOCK] = {};
    rows = std::min(rows, BLOCK), columns = std::min(columns, BLOCK);
    for (int64_t i = 0; adds && i < rows; i++) std::memcpy(sums + i * BLOCK, out + i * stride, columns * sizeof *out);
    multiply(left, right, steps, {sums, BLOCK, SIDE, SIDE * BLOCK});
    for (int64_t i = 0; i < rows; i++) std::memcpy(out + i * stride, sums + i * BLOCK, columns * sizeof *out);
}

// The number of outputs that a thread takes at a time: fewer if there are many threads.
inline int64_t choose_group(int64_t outputs, int64_t threads) {
    int64_t blocks = (outputs + BLOCK * threads - 1) / (BLOCK * threads);
    return std::min(MOST_OUTPUTS, std::max<int64_t>(1, blocks) * BLOCK);
}

// out[outputs, width] = the product of the transposed slopes and states, [tokens, width], which `adds` adds to it.
void multiply(const Slopes &slopes, const bfloat16 *states, int64_t width, bool adds, int64_t threads, float *out) {
    Lines shared(DEPTH / 2 * std::min(MOST_COLUMNS, width + BLOCK));
    Pair *panels = shared.find();
    int64_t group = choose_group(slopes.outputs, threads);
#pragma omp parallel num_threads(threads) if (threads > 1 && slopes.outputs * slopes.inputs * width > LARGE)
    {
        Tiles tiles;
        Lines own(2 * MOST_OUTPUTS * STRIDE);
        Pair *rounded = own.find(), *lost = rounded + MOST_OUTPUTS * STRIDE;
        for (int64_t first = 0; first < slopes.inputs; first += DEPTH) {
            int64_t count = std::min(DEPTH, slopes.inputs - first), pairs = (count + 2 * SIDE - 1) / (2 * SIDE) * SIDE;
            for (int64_t start = 0; start < width; start += MOST_COLUMNS) {
                int64_t end = std::min(width, start + MOST_COLUMNS);
#pragma omp for
                for (int64_t column = start; column < end; column += BLOCK) {
                    const bfloat16 *from = states + first * width + column;
                    arrange_states(from, width, count, end - column, panels + (column - start) * pairs);
                }
#pragma omp for
                for (int64_t output = 0; output < slopes.outputs; output += group) {
                    int64_t outputs = std::min(group, slopes.outputs - output), at = first * slopes.outputs + output;
                    bool split = slopes.lost != nullptr;
                    arrange_slopes(slopes.rounded + at, slopes.outputs, outputs, count, rounded);
                    if (split) arrange_slopes(slopes.lost + at, slopes.outputs, outputs, count, lost);
                    for (int64_t i = 0; i < outputs; i += BLOCK)
                        for (int64_t column = start; column < end; column += BLOCK) {
                            auto add = [&](const Pair *part, bool begun) {
                                multiply_block(part + i * STRIDE, panels + (column - start) * pairs, pairs, begun, outputs - i,
                                               width - column, out + (output + i) * width + column, width);
                            };
                            add(rounded, adds || first > 0);
                            if (split) add(lost, true);
                        }
                }
            }
        }
    }
}

}  // namespace

extern "C" {

void weight_gradient_bfloat16(const bfloat16 *slopes, const bfloat16 *lost, const bfloat16 *states, int64_t inputs,
                              int64_t outputs, int64_t width, bool adds, int64_t threads, float *out) {
    multiply({slopes, lost, outputs, inputs}, states, width, adds, threads, out);
}
}

#endif
