/* Tangled from book/12-model.nw; edit the chapter. */
/* Going through a model's tensors twice: to count their bytes, and to fill
 * memory with them. How a tensor is filled in is its backend's. */
#ifndef CP_LOADER_H
#define CP_LOADER_H

#include "model/facts.h"

/* A pass over the tensors of a model, into memory that is counted first. */
typedef struct {
    const cp_gguf *file;
    const cp_model_facts *facts;
    int64_t align;    /* what every place is a multiple of: a power of two */
    int64_t block;    /* that the next tensors belong to */
    char *memory;     /* the caller's; NULL while counting */
    int64_t used;     /* bytes so far, a multiple of align */
    cp_status status; /* the first failure */
} cp_loader;

/* One of the tensors of loader->block, or of the whole model: NULL for a tied
 * output layer, after a failure, and if it is not as the facts say
 * (cp_facts_tensor). */
const cp_gguf_tensor *cp_loader_find(cp_loader *loader, cp_weight weight);

/* The place of the next count things of size bytes each; NULL while counting.
 * Fails with CP_MEMORY if the bytes overflow. */
void *cp_loader_claim(cp_loader *loader, int64_t count, int64_t size);

#endif
