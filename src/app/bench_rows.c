/* The whole bench, part by part. */
#include "app/bench_rows.h"

cp_status cp_bench_run(const cp_place *place, const cp_bench *bench) {
    if (bench->model != NULL)
        return cp_bench_model(bench);
    if (bench->parts[CP_BENCH_MILLION])
        return cp_bench_million(bench);
    CP_TRY(cp_bench_attention(bench));
    if (bench->parts[CP_BENCH_RING])
        CP_TRY(cp_bench_ring(place, bench));
    return CP_OK;
}
