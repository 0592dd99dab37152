/* Tangled from book/12-model.nw; edit the chapter. */
/* What a backend keeps for one session, wherever its ranks run: the functions
 * of an engine that backend.h asks for. */
#ifndef CP_ENGINE_H
#define CP_ENGINE_H

#include "model/backend.h"
#include "reference/ring/place.h"

cp_status cp_engine_new(const cp_place *place, const cp_model *model,
                        const cp_session_options *options, cp_engine **out);
void cp_engine_free(cp_engine *engine);
cp_status cp_engine_run(cp_engine *engine, const cp_forward *call);
cp_status cp_engine_logits(const cp_engine *engine, int64_t first,
                           int64_t count, float *out);
cp_status cp_engine_trace(const cp_engine *engine, const char *path);

#endif
