// A whole decoding step of a model in float32.

#include <algorithm>

#include "decoding.h"

extern "C" {

// The logits, [rows, outputs of the head], of the next tokens.
//
// `states` are the embeddings of the last tokens, [rows, width], which change. `room` is memory for, with all rows, the
// norm and the change of the states, the widest result of a layer's joined products, and its attention or gated states.
void step(const Model *model, const Rows *rows, float *states, float *room, float *logits) {
    int64_t count = rows->count, width = model->width, threads = model->threads, widest = 0;
    for (int64_t i = 0; i < model->count; i++)
        widest = std::max({widest, model->layers[i].project.outputs, model->layers[i].gate_and_up.outputs});
    float *normed = room, *change = normed + count * width, *wide = change + count * width, *inner = wide + count * widest;
    const float *added = nullptr;
    for (int64_t i = 0; i < model->count; i++) {
        const Layer &layer = model->layers[i];
        norm_float32(states, added, layer.before, layer.before_epsilon, count, width, threads, normed);
        multiply(normed, count, width, &layer.project, threads, wide);
        const Attention &attention = layer.attention;
        int64_t keys = attention.heads * attention.width, queries = keys * attention.grouped;
        attend_float32(rows, &attention, wide, wide + queries, wide + queries + keys, inner);
        multiply(inner, count, layer.out.inputs, &layer.out, threads, change);
        norm_float32(states, change, layer.between, layer.between_epsilon, count, width, threads, normed);
        multiply(normed, count, width, &layer.gate_and_up, threads, wide);
        gate_float32(wide, wide + layer.down.inputs, layer.gate_and_up.outputs, count, layer.down.inputs, threads, inner);
        multiply(inner, count, layer.down.inputs, &layer.down, threads, change);
        added = change;
    }
    norm_float32(states, added, model->norm, model->epsilon, count, width, threads, normed);
    multiply(normed, count, width, &model->head, threads, logits);
}
}
