/* The backend whose ranks are threads of this process. */
#include "reference/model/cores_engine.h"
#include "reference/model/model.h"

static cp_status engine_new(const cp_model *model,
                            const cp_session_options *options,
                            cp_engine **out) {
    return cp_cores_engine_new(&cp_runner_threads, model, options, out);
}

static cp_status attend(cp_attend_job *job) {
    return cp_attend_run(&cp_runner_threads, job);
}

const cp_backend cp_backend_threads = {
    .name = "threads",
    .kernels = "fp32, OpenMP and BLIS",
    .communicator = "threads of one process",
    .machine = &cp_machine_threads,
    .attend = attend,
    .model_open = cp_llama_open,
    .model_close = cp_llama_close,
    .engine_new = engine_new,
};
