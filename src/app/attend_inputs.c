/* Reads the arrays of `longring attend`, and checks that they fit. */
#include "app/attend_inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "app/io.h"
#include "app/options_ring.h"

/* Parse the past of each sequence from the option of that name; text NULL: not
 * given. */
static cp_status pasts_read(cp_attend_inputs *in, const char *name,
                            const char *text) {
    const int64_t sequences = cp_max(1, in->lengths.count);
    int64_t pasts = text != NULL;
    for (const char *c = text; c != NULL && *c != '\0'; c++)
        pasts += *c == ',';
    if (pasts > 0 && pasts != sequences)
        return cp_refuse("--%s has %ld sequences, the new tokens have %ld; "
                         "--lengths gives the new tokens of each",
                         name, pasts, sequences);
    in->sequences = sequences;
    CP_TRY(cp_allocate(&in->turns, sequences, sizeof(int64_t), "turns"));
    CP_TRY(cp_allocate(&in->pasts, sequences, sizeof(cp_turn *), "turns"));
    for (int64_t s = 0; s < pasts; s++) {
        CP_TRY(cp_history_parse(name, text, &in->pasts[s], &in->turns[s]));
        text += strcspn(text, ",") + 1;
    }
    return CP_OK;
}

/* Parse the three file names of --indexer. */
static cp_status paths_take(cp_attend_inputs *in) {
    const char *text = in->indexer;
    for (int n = 0; n < 3; n++) {
        const size_t length = strcspn(text, ",");
        if (length == 0 || (text[length] == ',') != (n < 2))
            return cp_refuse(
                "--indexer %.200s: expected three files, Q.npy,K.npy,W.npy",
                in->indexer);
        CP_TRY(
            cp_allocate(&in->index_paths[n], (int64_t)length + 1, 1, "a name"));
        memcpy(in->index_paths[n], text, length);
        text += length + 1;
    }
    return CP_OK;
}

cp_status cp_attend_inputs_check(cp_attend_inputs *in) {
    if ((in->indexer != NULL) != (in->top_k >= 0))
        return cp_refuse("--indexer and --top-k need each other: the one gives "
                         "scores, the other the number of keys");
    if (in->indexer != NULL) {
        CP_TRY(cp_option_range("top-k", in->top_k, 1, INT32_MAX));
        CP_TRY(paths_take(in));
    }
    if (in->v == NULL && in->value_dim == 0)
        return cp_refuse("attend needs --v V.npy, or --value-dim if values are "
                         "the first numbers of their keys");
    if (in->history != NULL && in->cached != NULL)
        return cp_refuse("--history and --cached exclude each other");
    if (in->cached != NULL && strpbrk(in->cached, "d+") != NULL)
        return cp_refuse(
            "--cached %s: not a count (5, 128K); --history has turns",
            in->cached);
    CP_TRY(in->history != NULL ? pasts_read(in, "history", in->history)
                               : pasts_read(in, "cached", in->cached));
    return cp_option_range("window", in->window, 0, INT32_MAX);
}

/* Read an array of that many dimensions. */
static cp_status tensor_read(const char *path, int dims, const char *shape,
                             cp_npy *tensor) {
    CP_TRY(cp_command_array(path, tensor));
    if (tensor->dims != dims)
        return cp_refuse("%s: %d dimension%s; expected %s", path, tensor->dims,
                         cp_plural(tensor->dims), shape);
    return cp_npy_to_float32(tensor, path);
}

/* Check that each key has a value, and set the values' dimension. */
static cp_status values_take(const cp_attend_inputs *in, cp_shape *shape) {
    const int64_t *k = in->keys.shape, *v = in->values.shape;
    if (k[0] != v[0] || k[1] != v[1])
        return cp_refuse("%s is [%ld][%ld][%ld], %s is [%ld][%ld][%ld]; keys "
                         "and values must have equal rows and heads",
                         in->k, k[0], k[1], k[2], in->v, v[0], v[1], v[2]);
    if (in->value_dim != 0 && in->value_dim != v[2])
        return cp_refuse(
            "%s has values of dimension %ld, but --value-dim is %ld", in->v,
            v[2], in->value_dim);
    shape->value_dim = v[2];
    return CP_OK;
}

/* Set the shape, which all tensors must share. */
static cp_status shape_take(const cp_attend_inputs *in, cp_shape *shape) {
    const int64_t *q = in->queries.shape, *k = in->keys.shape;
    if (q[2] != k[2])
        return cp_refuse("%s has heads of dimension %ld, %s of %ld", in->q,
                         q[2], in->k, k[2]);
    *shape =
        (cp_shape){q[1], k[1], q[2], in->value_dim, in->v == NULL, in->window};
    if (!shape->latent)
        CP_TRY(values_take(in, shape));
    return cp_shape_check(shape);
}

/* Compare the token counts that the options give with the tensors' rows. */
static cp_status rows_check(const cp_attend_inputs *in,
                            const int64_t *lengths) {
    const int64_t rows = in->queries.shape[0], key_rows = in->keys.shape[0];
    int64_t fresh = 0, all = 0;
    for (int64_t s = 0; s < in->sequences; s++) {
        const int64_t past = cp_history_tokens(in->pasts[s], in->turns[s]);
        if (!cp_add(fresh, lengths[s], &fresh) || !cp_add(all, past, &all) ||
            !cp_add(all, lengths[s], &all))
            return cp_refuse(
                "--lengths or --cached: the sum of tokens overflows");
    }
    if (fresh != rows)
        return cp_refuse("%s has %ld rows, but --lengths has %ld new tokens",
                         in->q, rows, fresh);
    if (fresh < 1)
        return cp_refuse("%s has 0 rows: no new token", in->q);
    if (all != key_rows)
        return cp_refuse(
            "%s has %ld rows; %ld cached and %ld new tokens make %ld", in->k,
            key_rows, all - fresh, fresh, all);
    return CP_OK;
}

/* Load the indexer's three tensors; they must fit each other and the call. */
static cp_status indexer_load(cp_attend_inputs *in, cp_attend_job *job) {
    static const char *const shapes[] = {"[new tokens][heads][dimension]",
                                         "[cached and new tokens][dimension]",
                                         "[new tokens][heads]"};
    for (int n = 0; n < 3; n++)
        CP_TRY(tensor_read(in->index_paths[n], n == 0 ? 3 : 2, shapes[n],
                           &in->index[n]));
    const int64_t *q = in->index[0].shape, *k = in->index[1].shape;
    const int64_t *w = in->index[2].shape;
    const int64_t rows = in->queries.shape[0], keys = in->keys.shape[0];
    if (q[0] != rows || w[0] != rows || k[0] != keys)
        return cp_refuse("--indexer: %ld queries, %ld keys and %ld weights; "
                         "%s and %s have %ld and %ld rows",
                         q[0], k[0], w[0], in->q, in->k, rows, keys);
    if (q[1] != w[1] || q[2] != k[1] || q[1] < 1 || q[2] < 1)
        return cp_refuse("--indexer: queries have %ld heads of dimension %ld, "
                         "keys dimension %ld, weights %ld heads",
                         q[1], q[2], k[1], w[1]);
    job->indexer = (cp_indexer){q[1], q[2], in->top_k};
    job->index_queries = in->index[0].data;
    job->index_keys = in->index[1].data;
    job->index_weights = in->index[2].data;
    return CP_OK;
}

static cp_status sinks_load(cp_attend_inputs *in, int64_t heads) {
    cp_npy *tensor = &in->sink;
    CP_TRY(cp_command_array(in->sinks, tensor));
    if (tensor->dims != 1 || tensor->count != heads)
        return cp_refuse("%s: %d dimension%s, %ld number%s; expected one "
                         "dimension, a score for each of %ld query heads",
                         in->sinks, tensor->dims, cp_plural(tensor->dims),
                         tensor->count, cp_plural(tensor->count), heads);
    CP_TRY(cp_npy_to_float32(tensor, in->sinks));
    for (int64_t h = 0; h < heads; h++)
        if (!isfinite(((const float *)tensor->data)[h]))
            return cp_refuse("%s: the score of head %ld is not finite",
                             in->sinks, h);
    return CP_OK;
}

cp_status cp_attend_inputs_load(cp_attend_inputs *in, cp_attend_job *job) {
    static const char shape[] = "[tokens][heads][head dimension]";
    CP_TRY(tensor_read(in->q, 3, shape, &in->queries));
    CP_TRY(tensor_read(in->k, 3, shape, &in->keys));
    if (in->v != NULL)
        CP_TRY(tensor_read(in->v, 3, shape, &in->values));
    CP_TRY(shape_take(in, &job->shape));
    job->sequences = in->sequences;
    job->new_tokens =
        in->lengths.count > 0 ? in->lengths.items : in->queries.shape;
    CP_TRY(rows_check(in, job->new_tokens));
    job->turns = in->turns;
    job->history = (const cp_turn *const *)in->pasts;
    job->queries = in->queries.data;
    job->keys = in->keys.data;
    job->values = in->values.data;
    if (in->sinks != NULL)
        CP_TRY(sinks_load(in, job->shape.query_heads));
    return in->indexer != NULL ? indexer_load(in, job) : CP_OK;
}

void cp_attend_sinks_merge(const cp_attend_inputs *in,
                           const cp_attend_job *job) {
    const int64_t heads = job->shape.query_heads;
    const int64_t dim = cp_value_dim(&job->shape);
    const int64_t rows = in->queries.shape[0] * heads;
    for (int64_t i = 0; in->sinks != NULL && i < rows; i++) {
        const double sink = ((const float *)in->sink.data)[i % heads];
        const double larger = fmax(job->lse[i], sink);
        const double both =
            larger + log(exp(job->lse[i] - larger) + exp(sink - larger));
        const float weight = (float)exp(job->lse[i] - both);
        for (int64_t d = 0; d < dim; d++)
            job->output[i * dim + d] *= weight;
        job->lse[i] = (float)both;
    }
}

void cp_attend_inputs_free(cp_attend_inputs *in) {
    for (int64_t s = 0; s < in->sequences && in->pasts != NULL; s++)
        free(in->pasts[s]);
    free(in->pasts);
    free(in->turns);
    for (int n = 0; n < 3; n++) {
        free(in->index_paths[n]);
        cp_npy_free(&in->index[n]);
    }
    cp_npy_free(&in->queries);
    cp_npy_free(&in->keys);
    cp_npy_free(&in->values);
    cp_npy_free(&in->sink);
}
