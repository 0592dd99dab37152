/* Tangled from book/16-draft.nw; edit the chapter. */
/* Guesses of the next tokens, from the tokens of the conversation so far. */
#include "model/draft.h"

int64_t cp_draft(const int32_t *tokens, int64_t count, int64_t most,
                 int32_t *out) {
    int64_t best = CP_DRAFT_SHORTEST - 1, from = count;
    for (int64_t end = count - 1; end > 0 && best < CP_DRAFT_LONGEST; end--) {
        int64_t same = 0;
        while (same < cp_min(end, CP_DRAFT_LONGEST) &&
               tokens[end - 1 - same] == tokens[count - 1 - same])
            same++;
        if (same > best)
            from = end;
        best = cp_max(best, same);
    }
    for (int64_t n = 0; n < most && from < count; n++)
        out[n] = from + n < count ? tokens[from + n] : out[from + n - count];
    return from < count ? most : 0;
}
