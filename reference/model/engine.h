/* Tangled from book/12-model.nw; edit the chapter. */
/* Engines whose ranks compute on cores: threads of this process, or one of
 * them in each of several. */
#ifndef CP_CORES_ENGINE_H
#define CP_CORES_ENGINE_H

#include "model/engine.h"
#include "reference/ring/place.h"

/* A place must outlive the engine, and has a crew if ranks are apart. */
cp_status cp_cores_engine_new(const cp_place *place, const cp_model *model,
                              const cp_session_options *options,
                              cp_engine **out);

#endif
