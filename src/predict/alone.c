/* Tangled from book/16-unlike.nw; edit the chapter. */
/* Predicts a call on one device. */
#include "predict/alone.h"

int cp_alone_fastest(const cp_scenario *call) {
    const cp_curve *speeds = &call->hardware->device_speed;
    int fastest = 0;
    for (int n = 1; n < speeds->count && n < call->ranks; n++)
        if (speeds->value[n] > speeds->value[fastest])
            fastest = n;
    return fastest;
}

cp_status cp_alone(const cp_scenario *call, cp_forecast *forecast) {
    cp_scenario alone = *call;
    const int fastest = cp_alone_fastest(call);
    alone.ranks = 1;
    alone.devices = &fastest;
    alone.dealing = (cp_dealing){.placement = CP_ZIGZAG};
    return cp_simulate(&alone, forecast);
}

static cp_status is_faster(const cp_scenario *call, int64_t tokens,
                           bool *faster) {
    const int64_t none = 0;
    cp_scenario prompt = *call;
    cp_forecast alone, together;
    prompt.sequences = 1;
    prompt.new_tokens = &tokens;
    prompt.cached_tokens = &none;
    prompt.variant = CP_PASS_KV;
    prompt.kept = false;
    CP_TRY(cp_alone(&prompt, &alone));
    CP_TRY(cp_simulate(&prompt, &together));
    *faster = together.seconds < alone.seconds;
    return CP_OK;
}

cp_status cp_together_least(const cp_scenario *call, int64_t *tokens) {
    int least = 0, most = CP_TOGETHER_DOUBLED + 1;
    bool faster;
    while (least < most) {
        const int middle = (least + most) / 2;
        CP_TRY(is_faster(call, (int64_t)1 << middle, &faster));
        *(faster ? &most : &least) = faster ? middle : middle + 1;
    }
    int64_t high = (int64_t)1 << most, low = high / 2;
    while (high <= CP_TOGETHER_MOST && high - low > cp_max(1, low / 64)) {
        const int64_t middle = low + (high - low) / 2;
        CP_TRY(is_faster(call, middle, &faster));
        *(faster ? &high : &low) = middle;
    }
    *tokens = high;
    return CP_OK;
}
