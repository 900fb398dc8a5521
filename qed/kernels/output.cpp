// The logits of an output layer, [rows, width] for a slice of the vocabulary: their sums and their gradients ("slopes").
//
// T is the precision of the matrix product that computed the logits, and of the one that reads their gradients.

#include "vectors.h"

namespace {

constexpr int64_t LARGE = 1 << 15;  // logits from which on several threads share them
constexpr int64_t SPAN = 1024;      // columns whose sums are added up in float32, or that a thread takes at a time
constexpr int64_t ROWS = 64;        // rows and columns of a block whose gradients are transposed: whole cache lines are
constexpr int64_t COLUMNS = 64;     // read and written, and the block stays in the L1 cache
static_assert(SPAN <= ROWS * COLUMNS, "a part of a row takes the memory of a block");

template <typename T>
inline float find_largest_or_nan(const T *logits, int64_t width) {
    Wide most = Wide{} - INFINITY, wrong = {};  // NaN once a logit is NaN
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
// sum e^(z - m) (z - m) and sum e^2(z - m). The sums of one kind are `apart` from those of the next.
template <typename T>
void reduce_logits(const T *logits, const int64_t *labels, int64_t first, float factor, int64_t rows, int64_t width,
                   int64_t threads, float *chosen, float *sums, int64_t apart) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * width > LARGE)
    for (int64_t row = 0; row < rows; row++) {
        const T *own = logits + row * width;
        int64_t label = labels[row] - first;
        if (label >= 0 && label < width) chosen[row] = widen(own[label]) * factor;
        float largest = find_largest_or_nan(own, width);
        double mass = 0, moment = 0, square = 0;
        for (int64_t start = 0; start < width; start += SPAN) {
            Wide masses = {}, moments = {}, squares = {};
            for (int64_t i = start; i < std::min(width, start + SPAN); i += WIDE) {
                Wide below = (load_wide(own + i, width - i, -INFINITY) - largest) * factor;
                Wide weights = exponential(below);
                below = weights == 0 ? Wide{} : below;  // `below` may be infinite, as after the last column
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

// The values of a row that determine the gradients of its logits, see `_LinearLogps` in `qed.training.fused_logps`.
struct Row {
    float normaliser, entropy, of_logp, of_entropy;
};

// Where gradients are written, [rows, width]; their rounding errors, and their transpose in float32, are null if not wanted.
template <typename T>
struct Written {
    T *slopes, *lost;
    float *transposed;
};

// Computes the gradients of some columns of a row, one of which may be the label; the memory is padded to whole vectors.
template <typename T>
inline void reverse_columns(const T *logits, int64_t label, int64_t count, float factor, const Row &row, float *slopes) {
    for (int64_t i = 0; i < count; i += WIDE) {
        Wide logp = load_wide(logits + i, count - i, -INFINITY) * factor - row.normaliser;
        Wide share = exponential(logp);
        Wide each = -share * ((logp + row.entropy) * row.of_entropy + row.of_logp);
        store_wide(share == 0 ? Wide{} : each, slopes + i);  // the log-prob may be infinite there
    }
    if (label >= 0 && label < count) slopes[label] += row.of_logp;
}

// Writes some gradients at an offset, and their rounding errors.
template <typename T>
inline void write_slopes(const float *slopes, int64_t count, const Written<T> &to, int64_t at) {
    for (int64_t i = 0; i < count; i += WIDE) {
        Wide each = load_wide(slopes + i);
        store_wide(each, to.slopes + at + i, count - i);
        if (to.lost == nullptr) continue;
        T rounded[WIDE];
        store_wide(each, rounded);
        store_wide(each - load_wide(rounded), to.lost + at + i, count - i);
    }
}

// Writes the transpose of a block of gradients, [ROWS, COLUMNS], in rows with a stride.
inline void write_transposed(const float *block, int64_t rows, int64_t columns, int64_t stride, float *to) {
    for (int64_t j = 0; j < columns; j += LANES)
        for (int64_t i = 0; i < rows; i += LANES) {
            Vector part[LANES];
            for (int64_t k = 0; k < LANES; k++) part[k] = load(block + (i + k) * COLUMNS + j);
            transpose_block(part);
            for (int64_t k = 0; k < std::min(LANES, columns - j); k++)
                store_part(part[k], to + (j + k) * stride + i, rows - i);
        }
}

// Writes the gradients of the logits, which may overwrite them. The gradients of log-probs and entropies already have the
// factor of the logits. Rows are read from the first column to the last, or in blocks if there is a transpose.
template <typename T>
void reverse_logits(const T *logits, const int64_t *labels, int64_t first, float factor, const float *normaliser,
                    const float *entropy, const float *of_logps, const float *of_entropy, int64_t rows, int64_t width,
                    int64_t threads, const Written<T> &to) {
    int64_t step = to.transposed == nullptr ? SPAN : COLUMNS;
#pragma omp parallel for collapse(2) num_threads(threads) if (threads > 1 && rows * width > LARGE)
    for (int64_t start = 0; start < rows; start += ROWS)
        for (int64_t span = 0; span < width; span += SPAN) {
            float block[ROWS * COLUMNS] = {};  // or a part of a row
            int64_t count = std::min(ROWS, rows - start), end = std::min(width, span + SPAN);
            for (int64_t column = span; column < end; column += step) {
                int64_t columns = std::min(step, end - column);
                for (int64_t i = 0; i < count; i++) {
                    int64_t row = start + i, at = row * width + column;
                    Row own = {normaliser[row], 0, of_logps[row], 0};
                    if (of_entropy != nullptr) own.entropy = entropy[row], own.of_entropy = of_entropy[row];
                    float *slopes = to.transposed == nullptr ? block : block + i * COLUMNS;
                    reverse_columns(logits + at, labels[row] - first - column, columns, factor, own, slopes);
                    write_slopes(slopes, columns, to, at);
                }
                if (to.transposed != nullptr)
                    write_transposed(block, count, columns, rows, to.transposed + column * rows + start);
            }
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
                            int64_t width, int64_t threads, T *out, T *lost, float *transposed) {                            \
        reverse_logits(logits, labels, first, factor, normaliser, entropy, of_logps, of_entropy, rows, width, threads,       \
                       Written<T>{out, lost, transposed});                                                                   \
    }

extern "C" {
EXPORT(float32)
EXPORT(bfloat16)
}
