// Vectors of 8 numbers, and of 16 if the CPU has them; and the number types of tensors.
//
// Every number of a row is computed in an order that depends on the row alone, and not on the other rows of the batch, the
// number of threads or the alignment of memory. All tensors are row-major; strides count elements.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>

#ifdef __AVX__
#include <immintrin.h>
#endif

constexpr int64_t LANES = 8;  // numbers of a vector

// Of matrix products: the numbers of a vector, the rows that are computed together, so that their sums of two vectors each
// fit into the registers, and the outputs.
#ifdef __AVX512F__
constexpr int64_t WIDE = 16;
constexpr int64_t TILE = 12;
#else
constexpr int64_t WIDE = LANES;
constexpr int64_t TILE = 6;
#endif
constexpr int64_t PANEL = 2 * WIDE;
constexpr int64_t FEW = 4;  // with fewer rows, each sum of a tile waits for its last product

// The number of rows of the next tile, given how many are left: two tiles of similar size if the last would have few rows.
inline int64_t count_tile(int64_t left) { return left > TILE && left < TILE + FEW ? (left + 1) / 2 : std::min(TILE, left); }

typedef float Vector __attribute__((vector_size(32)));
typedef float Half __attribute__((vector_size(16)));
typedef int32_t Integers __attribute__((vector_size(32)));
typedef uint32_t Words __attribute__((vector_size(32)));
typedef uint16_t Shorts __attribute__((vector_size(16), aligned(2), may_alias));
typedef double Doubles __attribute__((vector_size(32)));
typedef float Wide __attribute__((vector_size(4 * WIDE)));  // of the width that products use

typedef float float32;

struct bfloat16 {
    uint16_t bits;
};

inline float widen(float value) { return value; }

inline float widen(bfloat16 value) {
    uint32_t bits = uint32_t(value.bits) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}

inline void narrow(float value, float *to) { *to = value; }

inline void narrow(float value, bfloat16 *to) {  // rounds to nearest, ties to even
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    to->bits = is_nan ? uint16_t(0x7fc0) : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// The bits of a vector of either kind, and of the same numbers in bfloat16.
template <typename V>
struct Kind;

template <>
struct Kind<Vector> {
    typedef Words Bits;
    typedef uint16_t Halves __attribute__((vector_size(16)));
};

#ifdef __AVX512F__
template <>
struct Kind<Wide> {
    typedef uint32_t Bits __attribute__((vector_size(64)));
    typedef uint16_t Halves __attribute__((vector_size(32)));
};
#endif

// Loads and stores of all numbers of a vector, aligned or not.
template <typename V>
inline V load_as(const float *from) {
    V values;
    std::memcpy(&values, from, sizeof values);
    return values;
}

template <typename V>
inline V load_as(const bfloat16 *from) {
    typename Kind<V>::Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    return reinterpret_cast<V>(__builtin_convertvector(halves, typename Kind<V>::Bits) << 16);
}

#ifdef __AVX512F__
// Without this, compilers widen 16 numbers in two halves.
template <>
inline Wide load_as<Wide>(const bfloat16 *from) {
    __m256i halves;
    std::memcpy(&halves, from, sizeof halves);
    return (Wide)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
}
#endif

template <typename V>
inline void store_as(V values, float *to) {
    std::memcpy(to, &values, sizeof values);
}

template <typename V>
inline void store_as(V values, bfloat16 *to) {  // as `narrow`
    typedef typename Kind<V>::Bits Bits;
    Bits bits = reinterpret_cast<Bits>(values);
    Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    rounded = values == values ? rounded : Bits{} + 0x7fc0;
    auto halves = __builtin_convertvector(rounded, typename Kind<V>::Halves);
    std::memcpy(to, &halves, sizeof halves);
}

// Keeps a vector in a register; otherwise compilers may read it from memory at each use.
template <typename V>
inline void keep(V &values) {
#ifdef __AVX__
    asm("" : "+v"(values));
#endif
}

// The first `count` numbers, and `other` after them.
template <typename V, typename T>
inline V load_part_as(const T *from, int64_t count, float other) {
    constexpr int64_t SIZE = sizeof(V) / sizeof(float);
    if (count >= SIZE) return load_as<V>(from);
    float part[SIZE];
    for (int64_t i = 0; i < SIZE; i++) part[i] = i < count ? widen(from[i]) : other;
    return load_as<V>(part);
}

template <typename V, typename T>
inline void store_part_as(V values, T *to, int64_t count) {
    if (count >= int64_t(sizeof(V) / sizeof(float))) return store_as(values, to);
    for (int64_t i = 0; i < count; i++) narrow(values[i], to + i);
}

template <typename T>
inline Vector load(const T *from) {
    return load_as<Vector>(from);
}

template <typename T>
inline void store(Vector values, T *to) {
    store_as(values, to);
}

template <typename T>
inline Vector load_part(const T *from, int64_t count, float other) {
    return load_part_as<Vector>(from, count, other);
}

template <typename T>
inline void store_part(Vector values, T *to, int64_t count) {
    store_part_as(values, to, count);
}

template <typename T>
inline Wide load_wide(const T *from, int64_t count = WIDE, float other = 0) {
    return load_part_as<Wide>(from, count, other);
}

template <typename T>
inline void store_wide(Wide values, T *to, int64_t count = WIDE) {
    store_part_as(values, to, count);
}

inline Vector fill(float value) { return Vector{value, value, value, value, value, value, value, value}; }

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(one, other, ...) __builtin_shufflevector(one, other, __VA_ARGS__)
#define HAS_HALVES
#else
#define SHUFFLE(one, other, ...) __builtin_shuffle(one, other, Integers{__VA_ARGS__})
#endif

// The two halves of a vector; with generic code some compilers would keep the vector in memory.
inline void split(Vector values, Half *low, Half *high) {
#ifdef HAS_HALVES
    *low = SHUFFLE(values, values, 0, 1, 2, 3);
    *high = SHUFFLE(values, values, 4, 5, 6, 7);
#else
    std::memcpy(low, &values, sizeof *low);
    std::memcpy(high, reinterpret_cast<char *>(&values) + sizeof *low, sizeof *high);
#endif
}

inline float add_up(Vector values) {
    Half low, high;
    split(values, &low, &high);
    low += high;
    return (low[0] + low[2]) + (low[1] + low[3]);
}

inline double add_up(Doubles values) { return (values[0] + values[2]) + (values[1] + values[3]); }

inline Doubles widen(Half values) {
#ifdef __AVX__
    return (Doubles)_mm256_cvtps_pd((__m128)values);  // by themselves compilers convert two numbers at a time
#else
    return __builtin_convertvector(values, Doubles);
#endif
}

// Adds the numbers of a vector to sums, 8 at a time.
inline Doubles add_to(Doubles sums, Vector values) {
    Half low, high;
    split(values, &low, &high);
    return sums + (widen(low) + widen(high));
}

inline float find_largest(Vector values) {
    Half low, high;
    split(values, &low, &high);
    low = high > low ? high : low;
    float first = low[2] > low[0] ? low[2] : low[0], second = low[3] > low[1] ? low[3] : low[1];
    return second > first ? second : first;
}

#ifdef __AVX512F__
inline void split(Wide values, Vector *low, Vector *high) {
    *low = (Vector)_mm512_castps512_ps256((__m512)values);
    *high = (Vector)_mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)values, 1));
}

inline float add_up(Wide values) {
    Vector low, high;
    split(values, &low, &high);
    return add_up(low) + add_up(high);
}

inline Doubles add_to(Doubles sums, Wide values) {
    Vector low, high;
    split(values, &low, &high);
    return add_to(add_to(sums, low), high);
}

inline float find_largest(Wide values) {
    Vector low, high;
    split(values, &low, &high);
    return find_largest(high > low ? high : low);
}
#endif

// The largest of `count` numbers; NaN is ignored.
template <typename T>
inline float find_largest(const T *numbers, int64_t count) {
    Wide most = Wide{} - INFINITY;
    for (int64_t i = 0; i < count; i += WIDE) {
        Wide part = load_wide(numbers + i, count - i, -INFINITY);
        most = part > most ? part : most;
    }
    return find_largest(most);
}

inline Vector add_neighbours(Vector one, Vector other) {
    return SHUFFLE(one, other, 0, 2, 8, 10, 4, 6, 12, 14) + SHUFFLE(one, other, 1, 3, 9, 11, 5, 7, 13, 15);
}

// The sums of 8 vectors.
inline Vector add_up_each(const Vector *each) {
    Vector first = add_neighbours(add_neighbours(each[0], each[1]), add_neighbours(each[2], each[3]));
    Vector second = add_neighbours(add_neighbours(each[4], each[5]), add_neighbours(each[6], each[7]));
    return SHUFFLE(first, second, 0, 1, 2, 3, 8, 9, 10, 11) + SHUFFLE(first, second, 4, 5, 6, 7, 12, 13, 14, 15);
}

// Transposes 8 vectors.
inline void transpose_block(Vector *rows) {
    Vector pairs[LANES], quads[LANES];
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = SHUFFLE(rows[i], rows[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        pairs[i + 1] = SHUFFLE(rows[i], rows[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < LANES; i += 4)
        for (int j = 0; j < 2; j++) {
            quads[i + 2 * j] = SHUFFLE(pairs[i + j], pairs[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            quads[i + 2 * j + 1] = SHUFFLE(pairs[i + j], pairs[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; i++) {
        rows[i] = SHUFFLE(quads[i], quads[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        rows[i + 4] = SHUFFLE(quads[i], quads[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

// The two parts of e^x that depend on the width of vectors. `limit_exponent` clips x at 89, whose power is infinite, because an
// infinite x would become NaN. `scale_by_power` returns 2^steps times a number: 0 for x below -87, where float32 has few digits
// left, and infinity beyond the largest float32; without the scaling instruction, from 88 on.
#ifdef __AVX512F__
inline Wide limit_exponent(Wide x) { return (Wide)_mm512_min_ps(_mm512_set1_ps(89.0f), (__m512)x); }

inline Wide scale_by_power(Wide number, Wide steps, Wide x) {
    __mmask16 is_large = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
    return (Wide)_mm512_maskz_scalef_ps(is_large, (__m512)number, (__m512)steps);
}
#endif

inline Vector limit_exponent(Vector x) { return x; }

inline Vector scale_by_power(Vector number, Vector steps, Vector x) {
    Integers power = (reinterpret_cast<Integers>(steps + 12582912.0f) + 127) << 23;  // the integer is in the lowest bits
    Vector scaled = number * reinterpret_cast<Vector>(power);
    return x < -87.0f ? Vector{} : x > 88.0f ? Vector{} + INFINITY : scaled;
}

// e^x to a unit in the last place: 2^steps e^rest, where e^rest is a polynomial of minimal relative error.
template <typename Floats>
inline Floats exponential(Floats x) {
    x = limit_exponent(x);
    Floats steps = x * 1.44269504f + 12582912.0f - 12582912.0f;  // x / ln 2, rounded to an integer
    Floats rest = x - steps * 0.693359375f - steps * -2.12194440e-4f;
    Floats sum = Floats{} + 1.381393540e-3f;
    sum = sum * rest + 8.368761095e-3f;
    sum = sum * rest + 4.166840514e-2f;
    sum = sum * rest + 1.666652022e-1f;
    sum = sum * rest + 4.999999335e-1f;
    sum = sum * rest + 1.0f;
    sum = sum * rest + 1.0f;
    return scale_by_power(sum, steps, x);
}

// A thread's memory for the numbers of one call; it is freed with the thread.
inline float *find_room(int64_t count) {
    static thread_local std::unique_ptr<float[]> room;
    static thread_local int64_t size = 0;
    if (count > size) {
        room.reset();
        room.reset(new float[count]);
        size = count;
    }
    return room.get();
}
