// Operations on each token of an update, forward and backward.
//
// T is the precision of the inputs and outputs of matrix products, and of their gradients ("slopes"). States and weights are
// float32.

#include <vector>

#include "vectors.h"

namespace {

constexpr int64_t LARGE = 1 << 15;  // elements from which on several threads share the rows
constexpr int64_t CHUNK = 64;       // rows whose gradients of a weight are summed together, whatever the number of threads

// The gradient of a weight of `width` numbers, which each chunk of rows sums separately.
class ChunkSums {
  public:
    ChunkSums(int64_t rows, int64_t width) : width(width), chunks((rows + CHUNK - 1) / CHUNK), parts(chunks * width, 0.0f) {}

    float *find(int64_t chunk) { return &parts[chunk * width]; }

    void add_up(float *out) const {
        for (int64_t i = 0; i < width; i++) out[i] = 0;
        for (int64_t chunk = 0; chunk < chunks; chunk++)
            for (int64_t i = 0; i < width; i++) out[i] += parts[chunk * width + i];
    }

    const int64_t width, chunks;

  private:
    std::vector<float> parts;
};

// 1 / sqrt(mean of the squares + epsilon).
template <typename T>
inline float find_scale(const T *states, int64_t width, float epsilon) {
    Vector sum = {};
    for (int64_t i = 0; i < width; i += LANES) {
        Vector state = load_part(states + i, width - i, 0);
        sum += state * state;
    }
    return 1 / std::sqrt(add_up(sum) / width + epsilon);
}

template <typename T, typename To>
inline void scale_states(const T *states, float scale, const float *weight, int64_t width, To *out) {
    for (int64_t i = 0; i < width; i += LANES)
        store_part(load_part(states + i, width - i, 0) * scale * load_part(weight + i, width - i, 0), out + i, width - i);
}

// The gradient of the input of an RMSNorm, plus `added` (null for none); adds that of the weight to `of_weight`.
template <typename T, typename From>
inline void reverse_norm(const T *slopes, const From *states, float scale, const float *weight, const float *added,
                         int64_t width, float *out, float *of_weight) {
    Vector sum = {};
    for (int64_t i = 0; i < width; i += LANES) {
        Vector product = load_part(slopes + i, width - i, 0) * load_part(states + i, width - i, 0);
        store_part(load_part(of_weight + i, width - i, 0) + product * scale, of_weight + i, width - i);
        sum += product * load_part(weight + i, width - i, 0);
    }
    float pull = add_up(sum) * scale * scale * scale / width;
    for (int64_t i = 0; i < width; i += LANES) {
        Vector own = load_part(slopes + i, width - i, 0) * load_part(weight + i, width - i, 0) * scale;
        own -= load_part(states + i, width - i, 0) * pull;
        if (added != nullptr) own += load_part(added + i, width - i, 0);
        store_part(own, out + i, width - i);
    }
}

// Rotates a head by the angles of its position (arXiv 2104.09864), or back.
template <typename T, typename To>
inline void rotate(const T *from, const float *cos, const float *sin, int64_t width, bool back, To *to) {
    int64_t half = width / 2;
    for (int64_t i = 0; i < half; i += LANES) {
        int64_t left = half - i;
        Vector first = load_part(from + i, left, 0), second = load_part(from + half + i, left, 0);
        Vector low = load_part(sin + i, left, 0), high = load_part(sin + half + i, left, 0);
        Vector across = back ? -high : low, other = back ? -low : high;
        store_part(first * load_part(cos + i, left, 0) - second * across, to + i, left);
        store_part(second * load_part(cos + half + i, left, 0) + first * other, to + half + i, left);
    }
}

// RMSNorm (arXiv 1910.07467) of states, [rows, width], plus `changes` (null for none), and each row's scale. The sums of
// states and changes are written to `sums`.
template <typename T>
void norm_forward(const float *states, const T *changes, const float *weight, float epsilon, int64_t rows, int64_t width,
                  int64_t threads, float *sums, float *scales, T *out) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * width > LARGE)
    for (int64_t row = 0; row < rows; row++) {
        const float *own = states + row * width;
        if (changes != nullptr) {
            float *sum = sums + row * width;
            for (int64_t i = 0; i < width; i++) sum[i] = own[i] + widen(changes[row * width + i]);
            own = sum;
        }
        scales[row] = find_scale(own, width, epsilon);
        scale_states(own, scales[row], weight, width, out + row * width);
    }
}

// The gradient of the states of `norm_forward`, plus `added` (null for none), and that of the weight.
template <typename T>
void norm_backward(const T *slopes, const float *states, const float *scales, const float *weight, const float *added,
                   int64_t rows, int64_t width, int64_t threads, float *out, float *of_weight) {
    ChunkSums sums(rows, width);
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * width > LARGE)
    for (int64_t chunk = 0; chunk < sums.chunks; chunk++)
        for (int64_t row = chunk * CHUNK; row < std::min(rows, (chunk + 1) * CHUNK); row++) {
            int64_t at = row * width;
            reverse_norm(slopes + at, states + at, scales[row], weight, added == nullptr ? nullptr : added + at, width,
                         out + at, sums.find(chunk));
        }
    sums.add_up(of_weight);
}

// The gradients of gates and ups, [rows, width], from `slopes`, that of silu(gate) * up, which overwrites it.
template <typename T>
void gate_backward(const T *gates, const T *ups, T *slopes, int64_t rows, int64_t width, int64_t threads, T *of_gates,
                   T *of_ups) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * width > LARGE)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < width; i += WIDE) {
            int64_t at = row * width + i, left = width - i;
            Wide gate = load_wide(gates + at, left, 0), up = load_wide(ups + at, left, 0);
            Wide slope = load_wide(slopes + at, left, 0);
            Wide sigmoid = 1.0f / (exponential(-gate) + 1.0f), opened = gate * sigmoid;
            store_wide(slope * up * (sigmoid + opened * (1.0f - sigmoid)), of_gates + at, left);
            store_wide(slope * opened, of_ups + at, left);
            store_wide(opened * up, slopes + at, left);
        }
}

// Rotates heads, [rows, heads, width], after their RMSNorm (none without a weight), by the angles of [rows, width]. `out` may
// be the heads themselves.
template <typename T>
void rotate_forward(const T *states, const float *weight, float epsilon, const float *cos, const float *sin, int64_t rows,
                    int64_t heads, int64_t width, int64_t threads, T *out) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * heads * width > LARGE)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t head = 0; head < heads; head++) {
            const T *from = states + (row * heads + head) * width;
            T *to = out + (row * heads + head) * width;
            const float *row_cos = cos + row * width, *row_sin = sin + row * width;
            if (weight == nullptr) {
                rotate(from, row_cos, row_sin, width, false, to);
            } else {
                float *normed = find_room(width);
                scale_states(from, find_scale(from, width, epsilon), weight, width, normed);
                rotate(normed, row_cos, row_sin, width, false, to);
            }
        }
}

// Replaces the gradients of the result of `rotate_forward` by those of its heads, and computes that of the weight.
template <typename T>
void rotate_backward(float *slopes, const T *states, const float *weight, float epsilon, const float *cos, const float *sin,
                     int64_t rows, int64_t heads, int64_t width, int64_t threads, float *of_weight) {
    ChunkSums sums(rows, weight != nullptr ? width : 0);
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * heads * width > LARGE)
    for (int64_t chunk = 0; chunk < sums.chunks; chunk++)
        for (int64_t row = chunk * CHUNK; row < std::min(rows, (chunk + 1) * CHUNK); row++)
            for (int64_t head = 0; head < heads; head++) {
                float *own = slopes + (row * heads + head) * width;
                rotate(own, cos + row * width, sin + row * width, width, true, own);
                if (weight == nullptr) continue;
                const T *from = states + (row * heads + head) * width;
                const float *added = nullptr;
                reverse_norm(own, from, find_scale(from, width, epsilon), weight, added, width, own, sums.find(chunk));
            }
    if (weight != nullptr) sums.add_up(of_weight);
}

}  // namespace

#define EXPORT(T)                                                                                                            \
    void norm_forward_##T(const float *states, const T *changes, const float *weight, float epsilon, int64_t rows,           \
                          int64_t width, int64_t threads, float *sums, float *scales, T *out) {                              \
        norm_forward(states, changes, weight, epsilon, rows, width, threads, sums, scales, out);                             \
    }                                                                                                                        \
    void norm_backward_##T(const T *slopes, const float *states, const float *scales, const float *weight,                   \
                           const float *added, int64_t rows, int64_t width, int64_t threads, float *out,                     \
                           float *of_weight) {                                                                               \
        norm_backward(slopes, states, scales, weight, added, rows, width, threads, out, of_weight);                          \
    }                                                                                                                        \
    void gate_backward_##T(const T *gates, const T *ups, T *slopes, int64_t rows, int64_t width, int64_t threads,            \
                           T *of_gates, T *of_ups) {                                                                         \
        gate_backward(gates, ups, slopes, rows, width, threads, of_gates, of_ups);                                           \
    }                                                                                                                        \
    void rotate_forward_##T(const T *states, const float *weight, float epsilon, const float *cos, const float *sin,         \
                            int64_t rows, int64_t heads, int64_t width, int64_t threads, T *out) {                           \
        rotate_forward(states, weight, epsilon, cos, sin, rows, heads, width, threads, out);                                 \
    }                                                                                                                        \
    void rotate_backward_##T(float *slopes, const T *states, const float *weight, float epsilon, const float *cos,           \
                             const float *sin, int64_t rows, int64_t heads, int64_t width, int64_t threads,                  \
                             float *of_weight) {                                                                             \
        rotate_backward(slopes, states, weight, epsilon, cos, sin, rows, heads, width, threads, of_weight);                  \
    }

extern "C" {
EXPORT(float32)
EXPORT(bfloat16)
}
