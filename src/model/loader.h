/* Tangled from book/12-model.nw; edit the chapter. */
/* Going through a model's tensors twice: to count their bytes, and to fill
 * memory with them. How a tensor is filled in is its place's. */
#ifndef CP_LOADER_H
#define CP_LOADER_H

#include "model/arena.h"
#include "model/facts.h"

typedef struct cp_loader cp_loader;
struct cp_loader {
    const cp_gguf *file;
    const cp_model_facts *facts;
    /* Claim room for count tensors of one kind, the first of which is this,
     * and fill it in once there is memory: those that a pass multiplies by
     * together, one vector, or one matrix. */
    void (*take)(cp_loader *loader, cp_weight first, int count);
    /* Counted: give arena.memory so many bytes. */
    cp_status (*reserve)(cp_loader *loader);
    void *model;
    cp_arena arena;
    int64_t layer;    /* that the next tensors belong to */
    cp_status status; /* the first failure */
};

/* Take all tensors, to count; reserve; take all of them again. */
cp_status cp_loader_run(cp_loader *loader);

/* One of the tensors of loader->layer, or of the whole model: NULL for a tied
 * output layer, after a failure, and if it is not as the facts say
 * (cp_facts_tensor). */
const cp_gguf_tensor *cp_loader_find(cp_loader *loader, cp_weight weight);

/* The place of the next count things of size bytes each; NULL while counting.
 * Fails with CP_MEMORY if the bytes overflow. */
void *cp_loader_claim(cp_loader *loader, int64_t count, int64_t size);

#endif
