/* One call of attention on threads, for one sequence whose past is one prefill:
 * its answer, and bounds on its error. For programs only. */
#ifndef HARNESS_ONE_CALL_H
#define HARNESS_ONE_CALL_H

#include <math.h>

#include "model/backend.h"
#include "reference/model/wire_error.h"
#include "plan/check.h"

/* Queries of the new tokens; keys and values of the earlier and the new ones,
 * as in a cp_attend_job. */
typedef struct {
    cp_shape shape;
    int64_t fresh, past;
    const float *queries, *keys, *values;
    float *output, *lse;
    cp_dealing dealing;
    int64_t page; /* rows; 0: no pages */
} one_call;

/* Bounds on the error: before the call, and by the LSE of its partials. */
typedef struct {
    cp_wire_error before, after;
    cp_wire_error rounding; /* the most that fp32 adds to these */
    cp_sent_kinds sent_kinds;
    int64_t bytes; /* of the rank that sends the most */
} one_call_facts;

static inline void one_call_see(void *loss, int rank, int64_t n,
                                const cp_pieces *queries, const cp_pieces *keys,
                                int64_t heads, const float *output,
                                const float *lse) {
    (void)queries, (void)keys, (void)heads;
    cp_error_see(loss, rank, n, output, lse);
}

static inline cp_wire_error one_call_rounding(const cp_attend_job *job,
                                              const cp_error *loss) {
    const int64_t heads = job->shape.query_heads;
    cp_wire_error most = {0, 0};
    for (int64_t n = 0; n < loss->call.layout->new_tokens * heads; n++) {
        const cp_wire_error one = cp_error_rounding(
            &loss->all, loss->sent_kinds, n % heads,
            job->queries + n * job->shape.head_dim, &loss->depth);
        most.output = fmax(most.output, one.output);
        most.lse = fmax(most.lse, one.lse);
    }
    return most;
}

/* Compute a job twice: observing each partial, and as it runs unobserved. Fails
 * as the plan or the walk does. */
static inline cp_status one_call_of(cp_attend_job *job, one_call_facts *facts) {
    cp_plan_report report = {0};
    cp_error loss;
    *facts = (one_call_facts){0};
    CP_TRY(cp_error_new(cp_backend_threads.machine, job, &loss));
    CP_TRY(cp_plan_check(loss.call.plan, &report));
    facts->before = cp_error_before(&loss);
    facts->rounding = one_call_rounding(job, &loss);
    facts->sent_kinds = loss.sent_kinds;
    for (int k = 0; k < job->ranks; k++)
        facts->bytes = cp_max(facts->bytes, report.bytes[k]);
    job->partial = one_call_see;
    job->partial_context = &loss;
    CP_TRY(cp_backend_threads.attend(job));
    facts->after = cp_error_after(&loss);
    job->partial = NULL;
    cp_plan_report_free(&report);
    cp_error_free(&loss);
    return cp_backend_threads.attend(job);
}

static inline cp_status one_call_answer(const one_call *one_call, int ranks,
                                        cp_variant variant, cp_wire wire,
                                        one_call_facts *facts) {
    const cp_turn past = {.tokens = one_call->past}, *const pasts[] = {&past};
    const int64_t turns = one_call->past > 0;
    cp_attend_job job = {.shape = one_call->shape,
                         .ranks = ranks,
                         .sequences = 1,
                         .new_tokens = &one_call->fresh,
                         .turns = &turns,
                         .history = pasts,
                         .variant = variant,
                         .wire = wire,
                         .dealing = one_call->dealing,
                         .block = one_call->page,
                         .queries = one_call->queries,
                         .keys = one_call->keys,
                         .values = one_call->values,
                         .output = one_call->output,
                         .lse = one_call->lse};
    return one_call_of(&job, facts);
}

/* The largest difference between two arrays' numbers. */
static inline double farthest(const float *a, const float *b, int64_t count) {
    double most = 0;
    for (int64_t n = 0; n < count; n++)
        most = fmax(most, fabs((double)a[n] - (double)b[n]));
    return most;
}

#endif
