/* Tangled from book/12-model.nw; edit the chapter. */
/* Find tensors, and give out places for them. */
#include "model/loader.h"

const cp_gguf_tensor *cp_loader_find(cp_loader *loader, cp_weight weight) {
    const cp_gguf_tensor *tensor = NULL;
    if (loader->status == CP_OK)
        loader->status = cp_facts_tensor(loader->file, loader->facts, weight,
                                         loader->block, &tensor);
    return loader->status == CP_OK ? tensor : NULL;
}

void *cp_loader_claim(cp_loader *loader, int64_t count, int64_t size) {
    char *place = loader->memory != NULL ? loader->memory + loader->used : NULL;
    int64_t bytes;
    if (!cp_multiply(count, size, &bytes) ||
        !cp_add(loader->used, bytes, &loader->used) ||
        !cp_add(loader->used, -loader->used & (loader->align - 1),
                &loader->used))
        loader->status = cp_fail(CP_MEMORY, "the weights' bytes overflow");
    return place;
}
