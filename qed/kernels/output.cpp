// The logits of an output layer, [rows, width] of a slice of the vocabulary: their sums, and their slopes.
//
// T is the precision of the product that computed the logits, and of the one that reads their slopes.

#include "vectors.h"

namespace {

constexpr int64_t LARGE = 1 << 15;  // numbers from which on several threads share them
constexpr int64_t SPAN = 1024;      // columns whose sums are added up in float32, or that a thread takes at a time
constexpr int64_t ROWS = 128;       // of a block whose slopes are transposed: a column of them is some lines of the cache,
constexpr int64_t COLUMNS = 16;     // and its columns

template <typename T>
inline float find_largest(const T *logits, int64_t width) {
    Wide most = Wide{} - INFINITY, wrong = {};  // NaN once a logit is
    for (int64_t i = 0; i < width; i += WIDE) {
        Wide each = load_wide(logits + i, width - i, -INFINITY);
        most = each > most ? each : most;
        wrong = each == each ? wrong : each;
    }
    float each[WIDE], largest = -INFINITY;
    store_wide(most, each);
    for (int64_t i = 0; i < WIDE; i++) largest = std::max(largest, each[i]);
    return largest + add_up(wrong);
}

// Writes the logit of each row's label, if it is one of these columns; and the largest logit m of each row, sum e^(z - m),
// sum e^(z - m) (z - m) and sum e^2(z - m). The numbers of each kind are `apart` from those of the next.
template <typename T>
void reduce_logits(const T *logits, const int64_t *labels, int64_t first, float factor, int64_t rows, int64_t width,
                   int64_t threads, float *chosen, float *sums, int64_t apart) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * width > LARGE)
    for (int64_t row = 0; row < rows; row++) {
        const T *own = logits + row * width;
        int64_t label = labels[row] - first;
        if (label >= 0 && label < width) chosen[row] = widen(own[label]) * factor;
        float largest = find_largest(own, width);
        double mass = 0, moment = 0, square = 0;
        for (int64_t start = 0; start < width; start += SPAN) {
            Wide masses = {}, moments = {}, squares = {};
            for (int64_t i = start; i < std::min(width, start + SPAN); i += WIDE) {
                Wide below = (load_wide(own + i, width - i, -INFINITY) - largest) * factor;
                Wide weights = exponential(below);
                below = weights == 0 ? Wide{} : below;  // which may be infinite, as behind the last column
                masses += weights, moments += weights * below, squares += weights * weights;
            }
            mass += add_up(masses), moment += add_up(moments), square += add_up(squares);
        }
        sums[row] = largest * factor;
        sums[apart + row] = float(mass);
        sums[2 * apart + row] = float(moment);
        sums[3 * apart + row] = float(square);
    }
}

// What the slopes of a row's logits follow from, see `_LinearLogps` in `qed.training.fused_logps`.
struct Row {
    float normaliser, entropy, of_logp, of_entropy;
};

// Writes the slopes of logits but for what the label adds.
template <typename T, typename To>
inline void reverse_row(const T *logits, int64_t width, float factor, const Row &row, To *out) {
    for (int64_t i = 0; i < width; i += WIDE) {
        Wide logp = load_wide(logits + i, width - i, -INFINITY) * factor - row.normaliser;
        Wide share = exponential(logp);
        Wide slopes = -share * ((logp + row.entropy) * row.of_entropy + row.of_logp);
        slopes = share == 0 ? Wide{} : slopes;  // where the log-prob may be infinite
        store_wide(slopes, out + i, width - i);
    }
}

// Writes the slopes of some columns of a block of rows, and their transpose.
template <typename T>
void reverse_block(const T *logits, const int64_t *labels, int64_t first, float factor, const Row *each, int64_t rows,
                   int64_t width, int64_t start, int64_t column, T *out, float *transposed) {
    int64_t count = std::min(ROWS, rows - start), left = std::min(COLUMNS, width - column);
    float block[ROWS * COLUMNS] = {};
    for (int64_t i = 0; i < count; i++) {
        int64_t at = (start + i) * width + column, label = labels[start + i] - first - column;
        float *slopes = block + i * COLUMNS;
        reverse_row(logits + at, left, factor, each[i], slopes);
        if (label >= 0 && label < left) slopes[label] += each[i].of_logp;
        for (int64_t j = 0; j < left; j += WIDE) store_wide(load_wide(slopes + j), out + at + j, left - j);
    }
    if (transposed == nullptr) return;
    for (int64_t j = 0; j < left; j += LANES)
        for (int64_t i = 0; i < count; i += LANES) {
            Vector part[LANES];
            for (int64_t k = 0; k < LANES; k++) part[k] = load(block + (i + k) * COLUMNS + j);
            transpose_block(part);
            for (int64_t k = 0; k < std::min(LANES, left - j); k++)
                store_part(part[k], transposed + (column + j + k) * rows + start + i, count - i);
        }
}

// Writes the slopes of the logits, which may take their place, and if there is room for them their transpose, [width, rows],
// in float32. The slopes of log-probs and entropies have the factor of the logits already.
template <typename T>
void reverse_logits(const T *logits, const int64_t *labels, int64_t first, float factor, const float *normaliser,
                    const float *entropy, const float *of_logps, const float *of_entropy, int64_t rows, int64_t width,
                    int64_t threads, T *out, float *transposed) {
#pragma omp parallel for collapse(2) num_threads(threads) if (threads > 1 && rows * width > LARGE)
    for (int64_t start = 0; start < rows; start += ROWS)
        for (int64_t span = 0; span < width; span += SPAN) {
            Row each[ROWS];
            for (int64_t i = 0; i < std::min(ROWS, rows - start); i++) {
                int64_t row = start + i;
                each[i] = {normaliser[row], 0, of_logps[row], 0};
                if (of_entropy != nullptr) each[i].entropy = entropy[row], each[i].of_entropy = of_entropy[row];
            }
            for (int64_t column = span; column < std::min(width, span + SPAN); column += COLUMNS)
                reverse_block(logits, labels, first, factor, each, rows, width, start, column, out, transposed);
        }
}

}  // namespace

#define EXPORT(T)                                                                                                            \
    void reduce_logits_##T(const T *logits, const int64_t *labels, int64_t first, float factor, int64_t rows, int64_t width, \
                           int64_t threads, float *chosen, float *sums, int64_t apart) {                                     \
        reduce_logits(logits, labels, first, factor, rows, width, threads, chosen, sums, apart);                             \
    }                                                                                                                        \
    void reverse_logits_##T(const T *logits, const int64_t *labels, int64_t first, float factor, const float *normaliser,    \
                            const float *entropy, const float *of_logps, const float *of_entropy, int64_t rows,              \
                            int64_t width, int64_t threads, T *out, float *transposed) {                                     \
        reverse_logits(logits, labels, first, factor, normaliser, entropy, of_logps, of_entropy, rows, width, threads, out,  \
                       transposed);                                                                                          \
    }

extern "C" {
EXPORT(float32)
EXPORT(bfloat16)
}
