// Matrices of numbers in float32, or of pairs of numbers in bfloat16.

#pragma once

#include "vectors.h"

namespace {

typedef uint32_t Pair;  // two numbers in bfloat16, the first in the lower half

// A matrix with any strides of rows and columns. A unit is a number, or a pair of neighbouring numbers of a row.
template <typename Unit>
struct Matrix {
    const Unit *units;
    int64_t row, column;

    Matrix skip(int64_t rows) const { return {units + rows * row, row, column}; }
};

}  // namespace
