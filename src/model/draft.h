/* Tangled from book/16-draft.nw; edit the chapter. */
/* Guesses of the tokens to come, from those that were said. A guess costs
 * time when it is wrong, and never an answer. */
#ifndef CP_DRAFT_H
#define CP_DRAFT_H

#include "ground/ground.h"

enum { CP_DRAFT_MOST = 64, CP_DRAFT_SHORTEST = 2, CP_DRAFT_LONGEST = 4 };

/* Guess what comes after count tokens: what came the last time after as many of
 * their last ones as possible, CP_DRAFT_SHORTEST to CP_DRAFT_LONGEST. Returns
 * most, the tokens in out, or 0: nothing like it was said before. */
int64_t cp_draft(const int32_t *said, int64_t count, int64_t most,
                 int32_t *out);

#endif
