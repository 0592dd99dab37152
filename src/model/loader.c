/* Tangled from book/12-model.nw; edit the chapter. */
/* Find tensors, and give out places for them. */
#include "model/loader.h"

const cp_gguf_tensor *cp_loader_find(cp_loader *loader, cp_weight weight) {
    const cp_gguf_tensor *tensor = NULL;
    if (loader->status == CP_OK)
        loader->status = cp_facts_tensor(loader->file, loader->facts, weight,
                                         loader->layer, &tensor);
    return loader->status == CP_OK ? tensor : NULL;
}

void *cp_loader_claim(cp_loader *loader, int64_t count, int64_t size) {
    void *place = cp_arena_claim(&loader->arena, count, size);
    if (loader->arena.overflows)
        loader->status = cp_fail(CP_MEMORY, "the weights' bytes overflow");
    return place;
}

static void take_all(cp_loader *loader) {
    loader->arena.used = 0;
    loader->take(loader, CP_WEIGHT_EMBEDDING, 1);
    loader->take(loader, CP_WEIGHT_OUTPUT_NORM, 1);
    loader->take(loader, CP_WEIGHT_OUTPUT, 1);
    for (loader->layer = 0; loader->layer < loader->facts->layers;
         loader->layer++) {
        loader->take(loader, CP_WEIGHT_ATTENTION_NORM, 1);
        loader->take(loader, CP_WEIGHT_QUERY, 3);
        loader->take(loader, CP_WEIGHT_ATTENTION_OUTPUT, 1);
        loader->take(loader, CP_WEIGHT_FORWARD_NORM, 1);
        loader->take(loader, CP_WEIGHT_GATE, 2);
        loader->take(loader, CP_WEIGHT_DOWN, 1);
    }
}

cp_status cp_loader_run(cp_loader *loader) {
    take_all(loader);
    CP_TRY(loader->status);
    CP_TRY(loader->reserve(loader));
    take_all(loader);
    return loader->status;
}
