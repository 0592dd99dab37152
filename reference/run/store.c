/* Tangled from book/08-conversations.nw; edit the chapter. */
/* The memory behind a cache on one machine. */
#include "reference/run/store.h"

#include <stdlib.h>
#include <string.h>

struct cp_store {
    int64_t layers;
    int64_t count;  /* tensors: ranks x layers x (keys, values) */
    float **tensor; /* [rank][layer][keys, values] */
    bool latent;    /* values are part of the keys: theirs have no rows */
    int64_t key_width, value_width; /* numbers of a row */
};

cp_status cp_store_new(int ranks, int only, int64_t layers, int64_t sequences,
                       int64_t room, const cp_shape *shape, cp_store **out) {
    cp_store *store;
    int64_t keys = shape->kv_heads * shape->head_dim;
    int64_t values = cp_value_width(shape);
    *out = NULL;
    CP_TRY(cp_allocate(&store, 1, sizeof(*store), "a store"));
    store->layers = layers;
    store->latent = shape->latent;
    store->key_width = keys;
    store->value_width = values;
    if (!cp_multiply(sequences, room, &room) ||
        !cp_multiply(keys, room, &keys) ||
        !cp_multiply(values, room, &values) ||
        !cp_multiply(2 * (int64_t)ranks, layers, &store->count))
        keys = store->count = -1;
    cp_status status =
        cp_allocate(&store->tensor, store->count, sizeof(float *), "a store");
    for (int64_t n = 0; n < store->count && status == CP_OK; n++)
        if (only == CP_NO_RANK || n / (2 * layers) == only)
            status =
                cp_allocate_lines(&store->tensor[n], n % 2 == 0 ? keys : values,
                                  sizeof(float), "the cache of a layer");
    if (status == CP_OK)
        *out = store;
    else
        cp_store_free(store);
    return status;
}
void cp_store_free(cp_store *store) {
    if (store == NULL)
        return;
    for (int64_t n = 0; store->tensor != NULL && n < store->count; n++)
        free(store->tensor[n]);
    free(store->tensor);
    free(store);
}

float *cp_store_keys(cp_store *store, int rank, int64_t layer) {
    return store->tensor[2 * (rank * store->layers + layer)];
}

float *cp_store_values(cp_store *store, int rank, int64_t layer) {
    return store->latent
               ? cp_store_keys(store, rank, layer)
               : store->tensor[2 * (rank * store->layers + layer) + 1];
}

void cp_store_lose(cp_store *store, int rank) {
    const int64_t each = 2 * store->layers, first = rank * each;
    for (int64_t n = first; n < first + each; n++)
        free(store->tensor[n]);
    store->count -= each;
    memmove(store->tensor + first, store->tensor + first + each,
            (size_t)(store->count - first) * sizeof(float *));
}

static void move_rows(float *tensor, int64_t width, const cp_moves *moves) {
    for (int64_t n = 0; n < moves->count; n++) {
        const cp_move *move = &moves->items[n];
        memmove(tensor + move->to * width, tensor + move->from * width,
                (size_t)(move->count * width) * sizeof(float));
    }
}

void cp_store_move(cp_store *store, int rank, int64_t layer,
                   const cp_moves *moves) {
    move_rows(cp_store_keys(store, rank, layer), store->key_width, moves);
    if (!store->latent)
        move_rows(cp_store_values(store, rank, layer), store->value_width,
                  moves);
}
