/* Calibration of ranks on GPUs, on the emulator or on a real one. */
#include "crowd.h"

#include <math.h>

#include "measure/calibrate_device.h"

static const cp_device_runner runner = {.only = CP_NO_RANK};
static int64_t rows[] = {1, 12}, keys[] = {16, 300}, bytes[] = {64, 4096};

static cp_calibration request_of(int ranks, cp_hardware *hardware) {
    *hardware = (cp_hardware){.name = "pretended"};
    return (cp_calibration){.shape = {2, 1, 16},
                            .ranks = ranks,
                            .cores = 2,
                            .rounds = 1,
                            .rows = {rows, 2},
                            .keys = {keys, 2},
                            .bytes = {bytes, 2},
                            .hardware = hardware};
}

static void near(double value, double expected) {
    ck_assert_msg(fabs(value / expected - 1) < 1e-3, "%g, not %g", value,
                  expected);
}

static const struct {
    int ranks;
    cp_numbers numbers;
} setups[] = {{1, CP_NUMBERS_BF16}, {2, CP_NUMBERS_F32},  {2, CP_NUMBERS_F8},
              {3, CP_NUMBERS_BF16}, {2, CP_NUMBERS_BF16}, {4, CP_NUMBERS_BF16}};

LOOP(calibration_recovers_the_pretended_machine, 0, HARNESS_SANITIZED ? 4 : 6) {
    const int ranks = setups[_i].ranks;
    cp_hardware h;
    const cp_calibration request = request_of(ranks, &h);
    begin(1);
    must(cp_calibrate_device(&runner, setups[_i].numbers, &request));
    if (emulator_pretends()) {
        /* The times of the pretended clock. */
        const double each = ranks > 1 ? ceil(4096.0 / (ranks - 1)) : 0;
        near(h.memory, 1 << 30);
        near(h.memory_rate, 2 * 4096 / (2e-6 + 4096e-12) * ranks);
        near(cp_curve_at(&h.exchange_at, 64) * ranks, 2e-6 + 64e-12);
        near(cp_curve_at(&h.exchange_at, 4096) * ranks, 2e-6 + 4096e-12);
        if (ranks > 1) {
            near(cp_curve_at(&h.all_to_all_at, 4096) * ranks,
                 (ranks - 1) * (2e-6 + each * 1e-12));
            ck_assert_double_eq(h.overlap, 1);
        }
        /* Kernels of two rounds: three products, attentions, one beside a
         * message, and two over many keys, which are split. */
        ck_assert_int_eq(emulator_count().launches,
                         2 * 16 * ranks * (3 + 3 + (ranks > 1) + 2));
    }
    ck_assert_int_eq(h.cores, 1);
    ck_assert_int_eq(h.attention_by.count, 2);
    ck_assert_int_eq(h.linear_at.count, 2);
    ck_assert_double_gt(h.attention_rate, 0);
    ck_assert_double_gt(h.peak, 0);
    ck_assert_double_gt(h.launch, 0);
    end();
}

static const double late = 1e-3;

typedef struct {
    crowd_member member;
    double timeout;
    cp_hardware hardware;
} calibrate_process;

/* Report longer times for rank 1. */
static cp_status collect_late(void *items, int64_t size) {
    if (myself->group.rank == 1 && size == sizeof(double))
        ((double *)items)[1] += late;
    return all_gather(items, size);
}

static cp_status calibrate(crowd_member *member) {
    calibrate_process *self = (calibrate_process *)(void *)member;
    const cp_calibration request =
        request_of(member->group.ranks, &self->hardware);
    cp_nccl *world;
    CP_TRY(cp_nccl_new(&member->id, member->group.rank, member->group.ranks, 10,
                       &world));
    const cp_device_runner apart = {.only = member->group.rank,
                                    .link = &world->link,
                                    .group = &member->group,
                                    .timeout = self->timeout};
    const cp_status status =
        cp_calibrate_device(&apart, CP_NUMBERS_BF16, &request);
    cp_nccl_free(world);
    return status;
}

static void run_processes(calibrate_process *all, int count, double timeout) {
    for (int r = 0; r < count; r++)
        all[r] = (calibrate_process){.member.group.all_gather = collect_late,
                                     .timeout = timeout};
    run_crowd(all, sizeof(*all), count, calibrate);
}

LOOP(processes_come_to_one_description, 0, 2 * emulator_pretends()) {
    calibrate_process all[CROWD];
    const int count = 2 + _i;
    emulator_begin(&(emulator_options){.open = true, .timeout = 20});
    run_processes(all, count, 10);
    for (int r = 0; r < count; r++) {
        ck_assert_msg(all[r].member.status == CP_OK, "%s",
                      all[r].member.message);
        ck_assert_int_eq(all[r].hardware.cores, 0);
        ck_assert_double_gt(all[r].hardware.launch, late / 16);
        ck_assert_double_lt(all[r].hardware.launch, 2 * late / 16);
        ck_assert_mem_eq(&all[r].hardware, &all[0].hardware,
                         sizeof(cp_hardware));
    }
    const emulator_statistics seen = emulator_count();
    const int64_t once = 2 + 1 + 2 * (count - 1);
    ck_assert_int_eq(seen.messages, 2 * count * once * 16);
    end();
}

LOOP(failures_leave_nothing_behind, 0, 3 * emulator_pretends()) {
    static void (*const break_it[])(int64_t) = {
        emulator_fail_allocation, emulator_fail_launch, emulator_fail_copy};
    cp_hardware h;
    const cp_calibration request = request_of(2, &h);
    cp_status status = CP_BROKEN;
    int64_t n = 1;
    for (; status != CP_OK && n < 100000; n *= 3) {
        begin_open(1);
        break_it[_i](n);
        status = cp_calibrate_device(&runner, CP_NUMBERS_BF16, &request);
        ck_assert_msg(status == CP_OK || *cp_message() != '\0', "no message");
        break_it[_i](0);
        end();
    }
    must(status);
    ck_assert_int_gt(n, 2);
}

static const struct {
    int64_t room;
    cp_shape shape;
    cp_numbers numbers;
    cp_status status;
    const char *words;
} impossible[] = {
    {1 << 16, {4, 2, 16}, CP_NUMBERS_BF16, CP_MEMORY, "4194304 bytes"},
    {9 << 20, {64, 2, 64}, CP_NUMBERS_F32, CP_MEMORY, "what is measured"},
    {1 << 28, {1, 1, 8}, CP_NUMBERS_F8, CP_INVALID, "16"},
};

LOOP(impossible_calls_are_refused, 0,
     COUNT_OF(impossible) * emulator_pretends()) {
    cp_hardware h;
    cp_calibration request = request_of(2, &h);
    request.shape = impossible[_i].shape;
    emulator_begin(&(emulator_options){.bytes = impossible[_i].room});
    refuses(cp_calibrate_device(&runner, impossible[_i].numbers, &request),
            impossible[_i].status, impossible[_i].words);
    end();
}

LOOP(a_dead_process_times_out, 0, emulator_pretends()) {
    calibrate_process all[CROWD];
    begin_open(1);
    emulator_dead_rank(1, 40);
    run_processes(all, 3, 0.3);
    for (int r = 0; r < 3; r++) {
        ck_assert_int_ne(all[r].member.status, CP_OK);
        ck_assert_str_ne(all[r].member.message, "");
    }
    emulator_end();
}
