// Operations on each row: norms, gates and draws.

#include "decoding.h"
#include "vectors.h"

static constexpr int64_t BLOCK = 256;      // tokens of a block in a draw
static constexpr int64_t LARGE = 1 << 15;  // elements from which on several threads share the rows

// Adds `change` (null for none) to the states in place, and writes their RMSNorm (arXiv 1910.07467).
template <typename T>
static void add_and_norm(float *all, const T *changes, const float *weight, float epsilon, int64_t rows, int64_t width,
                         int64_t threads, T *out) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * width > LARGE)
    for (int64_t row = 0; row < rows; row++) {
        float *states = all + row * width;
        Vector sum = {};
        for (int64_t i = 0; i < width; i += LANES) {
            Vector state = load_part(states + i, width - i, 0);
            if (changes != nullptr) {
                state += load_part(changes + row * width + i, width - i, 0);
                store_part(state, states + i, width - i);
            }
            sum += state * state;
        }
        float scale = 1 / std::sqrt(add_up(sum) / width + epsilon);
        for (int64_t i = 0; i < width; i += LANES) {
            Vector state = load_part(states + i, width - i, 0) * scale * load_part(weight + i, width - i, 0);
            store_part(state, out + row * width + i, width - i);
        }
    }
}

// silu(gate) * up.
template <typename T>
static void gate(const T *gates, const T *ups, int64_t stride, int64_t rows, int64_t width, int64_t threads, T *out) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * width > LARGE)
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < width; i += WIDE) {
            Wide state = load_wide(gates + row * stride + i, width - i, 0);
            Wide factor = load_wide(ups + row * stride + i, width - i, 0);
            store_wide(state * factor / (exponential(-state) + 1.0f), out + row * width + i, width - i);
        }
    }
}

// Draws a token of each row by inverting the cumulative distribution at a number in [0, 1), block by block; without
// `uniforms` it takes the most likely one. Sums are float64. A row with NaN has a log-prob of NaN.
template <typename T>
static void draw(const T *logits, int64_t rows, int64_t stride, int64_t size, const double *uniforms, int64_t threads,
                 int64_t *tokens, float *logps) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * size > LARGE)
    for (int64_t row = 0; row < rows; row++) {
        const T *own = logits + row * stride;
        int64_t blocks = (size + BLOCK - 1) / BLOCK;
        double *sums = reinterpret_cast<double *>(find_room(2 * blocks)), total = 0;
        float largest = find_largest(own, size);
        for (int64_t block = 0; block < blocks; block++) {
            Doubles sum = {};
            for (int64_t i = block * BLOCK; i < std::min(size, (block + 1) * BLOCK); i += WIDE)
                sum = add_to(sum, exponential(load_wide(own + i, size - i, -INFINITY) - largest));
            sums[block] = add_up(sum);
            total += sums[block];
        }
        int64_t token = 0;
        if (uniforms == nullptr) {
            while (token < size - 1 && !(widen(own[token]) == largest)) token++;
        } else {
            double target = uniforms[row] * total, before = 0;
            int64_t block = 0, last = 0;  // the last block and the last token of a probability above 0
            for (int64_t i = 0; i < blocks; i++)
                if (sums[i] > 0) last = i;
            for (; block < last && before + sums[block] <= target; block++) before += sums[block];
            float weights[BLOCK];
            int64_t first = block * BLOCK, count = std::min(BLOCK, size - first);
            for (int64_t i = 0; i < count; i += WIDE)
                store_wide(exponential(load_wide(own + first + i, count - i, -INFINITY) - largest), weights + i);
            token = size - 1;
            for (int64_t i = 0; i < count && before <= target; i++) {
                before += weights[i];
                if (weights[i] > 0) token = first + i;
            }
        }
        tokens[row] = token;
        logps[row] = float(double(widen(own[token]) - largest) - std::log(total));
    }
}

extern "C" {

void norm_float32(float *states, const float *changes, const float *weight, float epsilon, int64_t rows,
                  int64_t width, int64_t threads, float *out) {
    add_and_norm(states, changes, weight, epsilon, rows, width, threads, out);
}

void norm_bfloat16(float *states, const bfloat16 *changes, const float *weight, float epsilon, int64_t rows,
                   int64_t width, int64_t threads, bfloat16 *out) {
    add_and_norm(states, changes, weight, epsilon, rows, width, threads, out);
}

void gate_float32(const float *gates, const float *ups, int64_t stride, int64_t rows, int64_t width, int64_t threads,
                  float *out) {
    gate(gates, ups, stride, rows, width, threads, out);
}

void gate_bfloat16(const bfloat16 *gates, const bfloat16 *ups, int64_t stride, int64_t rows, int64_t width,
                   int64_t threads, bfloat16 *out) {
    gate(gates, ups, stride, rows, width, threads, out);
}

// Appends tokens to the rows, [rows, columns], and marks rows that finish: at an end token or at their longest length. The
// number of tokens of a finished row stays the same.
void append(int64_t rows, int64_t columns, const int64_t *chosen, const float *chosen_logps, const bool *ended,
            const int64_t *longest, int64_t *tokens, float *logps, int64_t *lengths, bool *finished) {
    for (int64_t row = 0; row < rows; row++) {
        int64_t place = row * columns + lengths[row];
        tokens[place] = chosen[row];
        logps[place] = chosen_logps[row];
        lengths[row] += !finished[row];
        finished[row] = finished[row] || ended[row] || lengths[row] >= longest[row];
    }
}

void draw_float32(const float *logits, int64_t rows, int64_t stride, int64_t size, const double *uniforms,
                  int64_t threads, int64_t *tokens, float *logps) {
    draw(logits, rows, stride, size, uniforms, threads, tokens, logps);
}

void draw_bfloat16(const bfloat16 *logits, int64_t rows, int64_t stride, int64_t size, const double *uniforms,
                   int64_t threads, int64_t *tokens, float *logps) {
    draw(logits, rows, stride, size, uniforms, threads, tokens, logps);
}
}
