/* Tangled from book/16-draft.nw; edit the chapter. */
/* Guesses of the next tokens, from the tokens of the conversation so far. A
 * wrong guess costs time, and never changes an answer. */
#ifndef CP_DRAFT_H
#define CP_DRAFT_H

#include "ground/ground.h"

enum { CP_DRAFT_MOST = 64, CP_DRAFT_SHORTEST = 2, CP_DRAFT_LONGEST = 4 };

/* Guess the tokens after tokens[count]: find the longest suffix, of
 * CP_DRAFT_SHORTEST to CP_DRAFT_LONGEST tokens, that occurred before, and copy
 * what followed its latest occurrence. Returns most, with the guesses in
 * out[most], or 0 if no such suffix occurred. */
int64_t cp_draft(const int32_t *tokens, int64_t count, int64_t most,
                 int32_t *out);

#endif
