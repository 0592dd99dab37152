/* The backends whose ranks are threads of this process. */
#include "reference/model/cores_engine.h"
#include "reference/model/model.h"

/* A backend, given how it multiplies many rows. */
#define BACKEND(suffix, shown, words)                                          \
    static cp_status engine_new##suffix(const cp_model *model,                 \
                                        const cp_session_options *options,     \
                                        cp_engine **out) {                     \
        return cp_cores_engine_new(&cp_runner_threads##suffix, model, options, \
                                   out);                                       \
    }                                                                          \
    static cp_status attend##suffix(cp_attend_job *job) {                      \
        return cp_attend_run(&cp_runner_threads##suffix, job);                 \
    }                                                                          \
    const cp_backend cp_backend_threads##suffix = {                            \
        .name = shown,                                                         \
        .kernels = words ", OpenMP and BLIS",                                  \
        .communicator = "threads of one process",                              \
        .machine = &cp_machine_threads,                                        \
        .attend = attend##suffix,                                              \
        .model_open = cp_llama_open,                                           \
        .model_close = cp_llama_close,                                         \
        .engine_new = engine_new##suffix,                                      \
    };

BACKEND(, "threads", "fp32")
BACKEND(_bf16, "threads-bf16", "bf16 where rows are many")
