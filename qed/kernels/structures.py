"""Structures shared with the C++ functions; `decoding.h` and `training.h` have the same fields and explain them."""

from __future__ import annotations

import ctypes

POINTER, COUNT, FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_bool
NUMBER, DOUBLE = ctypes.c_float, ctypes.c_double


class Rows(ctypes.Structure):
    """The rows of a step."""

    _fields_ = (
        *((name, COUNT) for name in ("count", "column", "prefix_columns")),
        *((name, POINTER) for name in ("prompts", "outputs", "owner", "prefix_lengths", "finished")),
    )


class Attention(ctypes.Structure):
    """Attention of a layer."""

    _fields_ = (
        *((name, COUNT) for name in ("heads", "grouped", "width", "window", "threads")),
        *((name, COUNT) for name in ("query_stride", "key_stride", "value_stride")),
        *((name, COUNT) for name in ("cache_row", "cache_head", "prefix_row", "prefix_head")),
        *((name, POINTER) for name in ("keys", "values", "prefix_keys", "prefix_values")),
        *((name, POINTER) for name in ("cos", "sin", "query_norm", "key_norm")),
        *((name, NUMBER) for name in ("query_epsilon", "key_epsilon", "scaling")),
    )


class Product(ctypes.Structure):
    """A linear layer with a packed weight."""

    _fields_ = (("panels", POINTER), ("bias", POINTER), ("outputs", COUNT), ("inputs", COUNT))


class Layer(ctypes.Structure):
    """A layer of a model."""

    _fields_ = (
        ("attention", Attention),
        *((name, Product) for name in ("project", "out", "gate_and_up", "down")),
        ("before", POINTER),
        ("between", POINTER),
        ("before_epsilon", NUMBER),
        ("between_epsilon", NUMBER),
    )


class Model(ctypes.Structure):
    """A model."""

    _fields_ = (
        ("layers", ctypes.POINTER(Layer)),
        *((name, COUNT) for name in ("count", "width", "threads")),
        ("norm", POINTER),
        ("epsilon", NUMBER),
        ("head", Product),
    )


class PackedAttention(ctypes.Structure):
    """Attention of a layer over a packed row."""

    _fields_ = (
        ("segments", POINTER),
        *((name, COUNT) for name in ("count", "heads", "grouped", "width", "window", "threads")),
        ("scaling", NUMBER),
    )
