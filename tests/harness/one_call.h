/* One call of attention on threads, for one sequence whose past is one prefill:
 * its answer, and bounds on its error. For programs only. */
#ifndef HARNESS_ONE_CALL_H
#define HARNESS_ONE_CALL_H

#include <math.h>

#include "model/backend.h"
#include "reference/model/loss.h"
#include "ring/check.h"

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
    cp_travels travels;
    int64_t bytes; /* of the rank that sends the most */
} one_call_facts;

static inline void one_call_see(void *loss, int rank, int64_t n,
                                const cp_pieces *queries, const cp_pieces *keys,
                                int64_t heads, const float *output,
                                const float *lse) {
    (void)queries, (void)keys, (void)heads;
    cp_loss_see(loss, rank, n, output, lse);
}

static inline cp_wire_error one_call_rounding(const cp_attend_job *job,
                                              const cp_loss *loss) {
    const int64_t heads = job->shape.query_heads;
    cp_wire_error most = {0, 0};
    for (int64_t n = 0; n < loss->call.layout->new_tokens * heads; n++) {
        const cp_wire_error one = cp_loss_rounding(
            &loss->all, loss->travels, n % heads,
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
    cp_loss loss;
    *facts = (one_call_facts){0};
    CP_TRY(cp_loss_new(cp_backend_threads.machine, job, &loss));
    CP_TRY(cp_plan_check(loss.call.plan, &report));
    facts->before = cp_loss_before(&loss);
    facts->rounding = one_call_rounding(job, &loss);
    facts->travels = loss.travels;
    for (int k = 0; k < job->ranks; k++)
        facts->bytes = cp_max(facts->bytes, report.bytes[k]);
    job->partial = one_call_see;
    job->partial_context = &loss;
    CP_TRY(cp_backend_threads.attend(job));
    facts->after = cp_loss_after(&loss);
    job->partial = NULL;
    cp_plan_report_free(&report);
    cp_loss_free(&loss);
    return cp_backend_threads.attend(job);
}

static inline cp_status one_call_answer(const one_call *it, int ranks,
                                        cp_variant variant, cp_wire wire,
                                        one_call_facts *facts) {
    const cp_turn past = {.tokens = it->past}, *const pasts[] = {&past};
    const int64_t turns = it->past > 0;
    cp_attend_job job = {.shape = it->shape,
                         .ranks = ranks,
                         .sequences = 1,
                         .new_tokens = &it->fresh,
                         .turns = &turns,
                         .history = pasts,
                         .variant = variant,
                         .wire = wire,
                         .dealing = it->dealing,
                         .block = it->page,
                         .queries = it->queries,
                         .keys = it->keys,
                         .values = it->values,
                         .output = it->output,
                         .lse = it->lse};
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
