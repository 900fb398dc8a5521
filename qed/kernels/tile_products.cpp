// Linear layers in bfloat16 by AMX tiles, whose weights are stored in the order of reading.
//
// The result for a row depends neither on the other rows nor on the number of threads.

#include "decoding.h"
#include "tiles.h"

#ifdef HAS_TILES

namespace {

constexpr int64_t BLOCK = GROUP;            // outputs of a panel, and rows that are multiplied by it together
constexpr int64_t NEAR = 1 << 18;           // the most pairs of these rows, so that they stay in a core's cache
constexpr int64_t LARGE = 1 << 20;          // multiplications from which on several threads share the outputs

inline int64_t count_pairs(int64_t inputs) { return (inputs + 2 * SIDE - 1) / (2 * SIDE) * SIDE; }

// Pairs of the first `count` of 32 numbers.
inline Line read_pairs(const bfloat16 *from, int64_t count) { return _mm512_maskz_loadu_epi16(find_mask(count), from); }

inline Line read_pairs(const float *from, int64_t count) {
    uint32_t mask = find_mask(count);
    __m512 low = _mm512_maskz_loadu_ps(mask & 0xffff, from), high = _mm512_maskz_loadu_ps(mask >> SIDE, from + SIDE);
    return (Line)_mm512_cvtne2ps_pbh(high, low);
}

// Copies a weight, [outputs, inputs], into panels, [panels, pairs of inputs, BLOCK], from an output on that is a multiple of
// SIDE.
template <typename T>
void pack(const T *weight, int64_t outputs, int64_t inputs, int64_t first, int64_t threads, Pair *panels) {
    int64_t pairs = count_pairs(inputs);
#pragma omp parallel for num_threads(threads) if (threads > 1 && outputs * inputs > LARGE)
    for (int64_t output = 0; output < outputs; output += SIDE) {
        int64_t place = first + output;
        Pair *to = panels + place / BLOCK * BLOCK * pairs + place % BLOCK;
        for (int64_t pair = 0; pair < pairs; pair += SIDE) {
            Line lines[SIDE] = {};
            for (int64_t i = 0; i < std::min(SIDE, outputs - output); i++)
                lines[i] = read_pairs(weight + (output + i) * inputs + 2 * pair, inputs - 2 * pair);
            transpose_lines(lines);
            for (int64_t i = 0; i < SIDE; i++) _mm512_storeu_si512(to + (pair + i) * BLOCK, lines[i]);
        }
    }
}

// Copies a row of states, with zeros after it; a row that does not exist is all zeros.
inline void copy_row(const bfloat16 *from, int64_t inputs, int64_t pairs, Pair *to) {
    if (from == nullptr) inputs = 0;
    for (int64_t pair = 0; pair < pairs; pair += SIDE)
        _mm512_storeu_si512(to + pair, read_pairs(from + 2 * pair, inputs - 2 * pair));
}

// Writes some sums of a panel, with its bias.
inline void write_sums(const float *sums, const float *bias, int64_t rows, int64_t outputs, int64_t width, bfloat16 *out) {
    for (int64_t i = 0; i < rows; i++, sums += BLOCK) {
        __m512 low = _mm512_loadu_ps(sums) + _mm512_loadu_ps(bias);
        __m512 high = _mm512_loadu_ps(sums + SIDE) + _mm512_loadu_ps(bias + SIDE);
        _mm512_mask_storeu_epi16(out + i * outputs, find_mask(width), (Line)_mm512_cvtne2ps_pbh(high, low));
    }
}

}  // namespace

extern "C" {

bool has_tile_products() { return has_tiles(); }

void pack_tiles_float32(const float *weight, int64_t outputs, int64_t inputs, int64_t first, int64_t threads, Pair *panels) {
    pack(weight, outputs, inputs, first, threads, panels);
}

void pack_tiles_bfloat16(const bfloat16 *weight, int64_t outputs, int64_t inputs, int64_t first, int64_t threads,
                         Pair *panels) {
    pack(weight, outputs, inputs, first, threads, panels);
}

// Computes [rows, outputs] from [rows, inputs]; the bias is padded to whole panels.
void multiply_bfloat16(const bfloat16 *states, int64_t rows, int64_t stride, const Product *product, int64_t threads,
                       bfloat16 *out) {
    // With a power of two between them, rows would compete for the same cache lines.
    int64_t inputs = product->inputs, outputs = product->outputs, pairs = count_pairs(inputs), apart = pairs + SIDE;
    int64_t padded = (rows + SIDE - 1) / SIDE * SIDE, together = std::max<int64_t>(1, NEAR / (apart * BLOCK)) * BLOCK;
    const Pair *panels = static_cast<const Pair *>(product->panels);
    Lines memory(padded * apart);
    Pair *copied = memory.find();
#pragma omp parallel num_threads(threads) if (threads > 1 && rows * outputs * inputs > LARGE)
    {
        Tiles tiles;
#pragma omp for
        for (int64_t row = 0; row < padded; row++)
            copy_row(row < rows ? states + row * stride : nullptr, inputs, pairs, copied + row * apart);
        for (int64_t start = 0; start < rows; start += together) {
            int64_t end = std::min(rows, start + together), blocks = (end - start + BLOCK - 1) / BLOCK;
#pragma omp for
            for (int64_t first = 0; first < outputs; first += BLOCK) {
                const Pair *panel = panels + first * pairs, *next = panel + BLOCK * pairs;
                int64_t lines = first + BLOCK < outputs ? BLOCK / blocks : 0;
                for (int64_t row = start; row < end; row += BLOCK, next += lines * pairs) {
                    int64_t count = std::min(BLOCK, end - row);
                    Operand left{copied + row * apart, apart, SIDE * apart, SIDE};
                    Operand right{panel, BLOCK, SIDE, SIDE * BLOCK, next, lines};
                    auto multiply = count > SIDE ? multiply_tiles<false> : multiply_tiles<false, 1>;
                    float sums[BLOCK * BLOCK];
                    bfloat16 *to = out + row * outputs + first;
                    for (int64_t i = 0; i < count; i++) __builtin_prefetch(to + i * outputs, 1);
                    multiply(left, right, pairs / SIDE, {sums, BLOCK, SIDE, SIDE * BLOCK});
                    write_sums(sums, product->bias + first, count, outputs, outputs - first, to);
                }
            }
        }
    }
}
}

#else

extern "C" {

bool has_tile_products() { return false; }

void multiply_bfloat16(const bfloat16 *, int64_t, int64_t, const Product *, int64_t, bfloat16 *) {}  // nothing calls it
}

#endif
