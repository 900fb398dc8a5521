// Attention of a packed row in float32, and in bfloat16 without products of pairs.

#include "packed_attention.h"

#include "pair_attention.h"
#include "tiles.h"

namespace {

// Operands of products of numbers in float32.
struct Floats {
    typedef float Unit;
    static constexpr int64_t SIZE = 1;

    template <typename T>
    static void copy(const T *from, int64_t stride, int64_t count, int64_t width, float *to) {
        copy_rows(from, stride, count, width, to, width);
    }

    static void stack(const float *from, int64_t count, int64_t width, float *to) {
        std::memcpy(to, from, count * width * sizeof *to);
    }

    static void write_row(Wide numbers, int64_t row, int64_t column, const Slice &slice, float *to) {
        store_wide(numbers, to + row * slice.stride() + column);
    }

    static void write_rows(const Wide *numbers, int64_t row, int64_t column, const Slice &slice, float *to) {
        write_row(numbers[0], row, column, slice, to);
    }

    static void write_columns(const Wide *numbers, int64_t row, int64_t column, const Slice &slice, float *to) {
        write_row(numbers[0], row, column, slice, to);
    }

    static Matrix<float> view_rows(const Block &block, const Slice &slice, const float *from) {
        return {from + block.begin, slice.stride(), 1};
    }
};

}  // namespace

#define EXPORT(T)                                                                                                            \
    void attend_forward_##T(const PackedAttention *attention, const T *query, const T *key, const T *value, float *sums,     \
                            T *out) {                                                                                        \
        if (!attend_pairs(*attention, query, key, value, sums, out))                                                         \
            attend_forward<Floats>(*attention, query, key, value, sums, out);                                                \
    }                                                                                                                        \
    void attend_backward_##T(const PackedAttention *attention, const T *query, const T *key, const T *value,                 \
                             const float *sums, const T *attended, const T *slopes, float *of_query, float *of_key,          \
                             float *of_value) {                                                                              \
        if (!reverse_pairs(*attention, query, key, value, sums, attended, slopes, of_query, of_key, of_value))               \
            attend_backward<Floats>(*attention, query, key, value, sums, attended, slopes, of_query, of_key, of_value);      \
    }

extern "C" {

bool multiplies_in_tiles(int64_t width) { return fits_tiles(width); }

EXPORT(float32)
EXPORT(bfloat16)
}
