// Structures that the functions share; `qed/kernels/structures.py` has the same fields.

#pragma once

#include "vectors.h"

// The rows of a step.
struct Rows {
    int64_t count, column, prefix_columns;  // the column to write; without prefix columns each row has a copy of its prompt
    const int64_t *prompts, *outputs;       // [count], tokens of each prompt and of each answer so far
    const int64_t *owner;                   // [count], the shared prompt or prefix of each row
    const int64_t *prefix_lengths;          // [shared prompts], the tokens of each
    const bool *finished;                   // [count]: rows whose attention is 0 instead of computed
};

// Attention of a layer.
struct Attention {
    int64_t heads, grouped, width, window, threads;   // `heads` of keys, each for `grouped` queries; window 0: none
    int64_t query_stride, key_stride, value_stride;   // between two rows of the new states
    int64_t cache_row, cache_head;                    // strides of keys and values, [rows, heads, columns, width]
    int64_t prefix_row, prefix_head;                  // and of those of the prompts
    void *keys, *values, *prefix_keys, *prefix_values;
    const float *cos, *sin, *query_norm, *key_norm;   // the sine has the sign of the rotated half; a null norm means none
    float query_epsilon, key_epsilon, scaling;
};

// A linear layer, see `pack` and `pack_tiles`.
struct Product {
    const void *panels;
    const float *bias;
    int64_t outputs, inputs;
};

struct Layer {
    Attention attention;
    Product project, out, gate_and_up, down;
    const float *before, *between;  // weights of the norms
    float before_epsilon, between_epsilon;
};

// A model of `count` layers, whose states have `width` numbers.
struct Model {
    const Layer *layers;
    int64_t count, width, threads;
    const float *norm;
    float epsilon;
    Product head;
};

#define DECLARE(T)                                                                                                           \
    void multiply_##T(const T *states, int64_t rows, int64_t stride, const Product *product, int64_t threads, T *out);       \
    void attend_##T(const Rows *, const Attention *, const T *query, const T *key, const T *value, T *out);                  \
    void norm_##T(float *states, const T *changes, const float *weight, float epsilon, int64_t rows, int64_t width,          \
                  int64_t threads, T *out);                                                                                  \
    void gate_##T(const T *gates, const T *ups, int64_t stride, int64_t rows, int64_t width, int64_t threads, T *out);

extern "C" {
DECLARE(float32)
DECLARE(bfloat16)
}
