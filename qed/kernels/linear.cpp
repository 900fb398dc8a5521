// Linear layers in float32 for few rows, whose weights are stored in the order of reading.

#include <utility>

#include "decoding.h"
#include "vectors.h"

namespace {

constexpr int64_t LINE = 16;         // numbers of a cache line
constexpr int64_t AHEAD = 48;        // inputs by which weights are prefetched
constexpr int64_t PACKED = 64;       // inputs that are packed together, so that few pages are in use at a time
constexpr int64_t LEAST = 96;        // the fewest rows that read a panel together, and
constexpr int64_t NEAR = 1 << 16;    // the most numbers of these rows, so that they stay in the CPU's cache
constexpr int64_t LARGE = 1 << 20;   // multiplications from which on several threads share the outputs

typedef float Wide __attribute__((vector_size(4 * WIDE), aligned(4), may_alias));

// The sums of `Count` rows and the outputs of a panel.
template <int Count>
void multiply_tile(const float *states, int64_t stride, const float *panel, int64_t inputs, const float *bias, float *out,
                   int64_t out_stride, int64_t width) {
    typedef float Sum __attribute__((vector_size(4 * WIDE)));
    Sum low[Count], high[Count];
    for (int row = 0; row < Count; row++) {
        low[row] = *reinterpret_cast<const Wide *>(bias);
        high[row] = *reinterpret_cast<const Wide *>(bias + WIDE);
    }
    for (int64_t input = 0; input < inputs; input++) {
        for (int64_t i = 0; i < PANEL; i += LINE) __builtin_prefetch(panel + (input + AHEAD) * PANEL + i);
        Sum first = *reinterpret_cast<const Wide *>(panel + input * PANEL);
        Sum second = *reinterpret_cast<const Wide *>(panel + input * PANEL + WIDE);
        keep(first);
        keep(second);
        for (int row = 0; row < Count; row++) {
            float value = states[row * stride + input];
            low[row] += value * first;
            high[row] += value * second;
        }
    }
    for (int row = 0; row < Count; row++) {
        if (width == PANEL) {
            *reinterpret_cast<Wide *>(out + row * out_stride) = low[row];
            *reinterpret_cast<Wide *>(out + row * out_stride + WIDE) = high[row];
            continue;
        }
        float sums[PANEL];
        *reinterpret_cast<Wide *>(sums) = low[row];
        *reinterpret_cast<Wide *>(sums + WIDE) = high[row];
        std::memcpy(out + row * out_stride, sums, width * sizeof(float));
    }
}

typedef void Multiply(const float *, int64_t, const float *, int64_t, const float *, float *, int64_t, int64_t);

template <int... Counts>
Multiply *choose(int64_t count, std::integer_sequence<int, Counts...>) {
    static Multiply *const each[] = {multiply_tile<Counts + 1>...};
    return each[count - 1];
}

}  // namespace

extern "C" {

int64_t find_panel() { return PANEL; }

// Copies a weight, [outputs, inputs], into panels, [panels, inputs, PANEL], with zeros after the last output.
void pack(const float *weight, int64_t outputs, int64_t inputs, float *panels) {
    for (int64_t first = 0; first < outputs; first += PANEL, panels += PANEL * inputs)
        for (int64_t begin = 0; begin < inputs; begin += PACKED)
            for (int64_t i = 0; i < PANEL; i++)
                for (int64_t input = begin; input < std::min(inputs, begin + PACKED); input++)
                    panels[input * PANEL + i] = first + i < outputs ? weight[(first + i) * inputs + input] : 0;
}

// Computes [rows, outputs] from [rows, inputs]; the bias is padded to whole panels.
void multiply_float32(const float *states, int64_t rows, int64_t stride, const Product *product, int64_t threads, float *out) {
    const float *weights = static_cast<const float *>(product->panels);
    int64_t inputs = product->inputs, outputs = product->outputs, panels = (outputs + PANEL - 1) / PANEL;
    int64_t together = std::max(LEAST, NEAR / inputs) / TILE * TILE, blocks = (rows + together - 1) / together;
    // Threads take blocks in turn, because the last block may have fewer rows.
#pragma omp parallel for collapse(2) schedule(static, 1) num_threads(threads) if (threads > 1 && rows * outputs * inputs > LARGE)
    for (int64_t block = 0; block < blocks; block++) {
        for (int64_t panel = 0; panel < panels; panel++) {
            int64_t first = panel * PANEL, width = std::min(PANEL, outputs - first);
            int64_t end = std::min(rows, (block + 1) * together);
            for (int64_t row = block * together, count; row < end; row += count) {
                count = count_tile(end - row);
                Multiply *tile = choose(count, std::make_integer_sequence<int, TILE>());
                tile(states + row * stride, stride, weights + first * inputs, inputs, product->bias + first,
                     out + row * outputs + first, outputs, width);
            }
        }
    }
}
}
