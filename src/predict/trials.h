/* Tangled from book/10-choose.nw; edit the chapter. */
/* Calls of which both variants were timed: read from a CSV file, and what a
 * rule's choices would have cost. */
#ifndef CP_TRIALS_H
#define CP_TRIALS_H

#include "ring/rules.h"

/* A call of which both variants were timed, in any one unit. */
typedef struct {
    int64_t ranks; /* 0: the file does not say */
    int64_t fresh, cached;
    double pass_kv, pass_q;
} cp_trial;

typedef struct {
    cp_trial *items;
    int64_t count;
} cp_trials;

/* Read a CSV text: lines of # are comments, the first other line has the names
 * of the columns. new and cached are needed, ranks may be there; and either
 * pass_kv and pass_q, or variant and milliseconds, seconds or value. Other
 * columns are ignored. only, if not NULL: take only rows whose first cell
 * begins so. Fails with CP_INVALID, label and line number: a ragged line, what
 * is no count or no time, more tokens or ranks than a command takes, in the
 * long form a measurement that occurs twice, a file of which no call has both
 * variants. */
cp_status cp_trials_parse(const char *label, const char *text, const char *only,
                          cp_trials *trials);
void cp_trials_free(cp_trials *trials);

typedef struct {
    int64_t right, of; /* calls for which the faster variant was chosen */
    double regret;     /* total time as chosen over the least, less 1 */
} cp_score;

/* Add a call to the totals that a score is made of; did it choose right? Equal
 * times are right either way. */
typedef struct {
    cp_score score;
    double chosen, best;
} cp_scoring;
bool cp_scoring_add(cp_scoring *scoring, const cp_trial *trial,
                    cp_variant variant);

/* Ask a rule about every trial; ranks are the trial's, or the setting's where
 * the file did not say. wrong is NULL or [count]. Fails as cp_rule_ask. */
cp_status cp_trials_score(const cp_trials *trials, const cp_rule *rule,
                          const cp_setting *setting, cp_score *score,
                          bool *wrong);

#endif
