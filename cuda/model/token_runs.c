/* Tangled from book/16-state-gpu.nw; edit the chapter. */
/* Tokens in a layer with a state. */
#include "cuda/model/token_runs.h"

#include "cuda/kernels/device.h"

cp_status cp_state_launched(cudaError_t error) {
    return cp_cuda(error, "a layer with a state");
}

cudaError_t cp_tail_put(const void *facts, const void *earlier, void *later,
                        cudaStream_t stream) {
    const cp_state_facts *f = facts;
    const cp_device_tails_args call = {cp_state_channels(f), f->taps - 1,
                                       earlier, later};
    return cp_device_tails(&call, stream);
}

static cp_device_channels channels_of(const cp_token_run *run) {
    const cp_state_facts *f = run->facts;
    return (cp_device_channels){
        run->count,  cp_state_row(f), cp_state_channels(f),
        f->taps - 1, run->row,        run->order};
}

cp_status cp_token_run_take(const cp_token_run *run, const float *earlier,
                            float *tail) {
    const cp_device_take_args call = {channels_of(run), tail};
    CP_TRY(cp_state_launched(cp_device_take(&call, run->stream)));
    return earlier != NULL ? cp_state_launched(cp_tail_put(run->facts, earlier,
                                                           tail, run->stream))
                           : CP_OK;
}

cp_status cp_token_run_convolve(const cp_token_run *run, const float *taps,
                                const float *tail) {
    const cp_device_convolve_args call = {channels_of(run), taps, tail};
    return cp_state_launched(cp_device_convolve(&call, run->stream));
}

cp_status cp_token_run_normalise(const cp_token_run *run) {
    const cp_state_facts *f = run->facts;
    const cp_device_normalise_args call = {run->count,   cp_state_row(f),
                                           f->key_heads, f->key_dim,
                                           run->row,     run->order};
    return cp_state_launched(cp_device_normalise(&call, run->stream));
}

cp_status cp_token_run_follow(const cp_token_run *run,
                              cp_device_state_rows before,
                              cp_device_state_rows after) {
    const cp_device_follow_args call = {.facts = *run->facts,
                                        .tokens = run->count,
                                        .stride = cp_state_row(run->facts),
                                        .rows = run->row,
                                        .order = run->order,
                                        .before = before,
                                        .after = after,
                                        .answers = run->answer};
    return cp_state_launched(cp_device_follow(&call, run->stream));
}
