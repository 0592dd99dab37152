/* What launchers leave in the environment, and how it is read.
 * test_streams_processes.c has the rendezvous of processes. */
#define _DEFAULT_SOURCE
#include "expect.h"

#include <stdio.h>
#include <string.h>

#include "group/launch.h"

/* Environments are "NAME=value NAME=value". */
static const struct {
    const char *environment;
    cp_launch launch;
} launches[] = {
    {"", {NULL, 0, 1, 0, 1, ""}},
    /* What torchrun and mpirun leave. */
    {"RANK=5 WORLD_SIZE=16 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=node-0 "
     "MASTER_PORT=1234 TORCHELASTIC_USE_AGENT_STORE=True",
     {"torchrun", 5, 16, 1, 4, "node-0:1235"}},
    {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=65535",
     {"torchrun", 1, 2, -1, 0, "a:65534"}},
    {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=7 LONGRING_PORT=9",
     {"torchrun", 1, 2, -1, 0, "a:9"}},
    {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=a LONGRING_PORT=9 NCCL_COMM_ID=b:7",
     {"torchrun", 1, 2, -1, 0, "b:7"}},
    {"RANK=0 WORLD_SIZE=2", {"torchrun", 0, 2, -1, 0, ""}},
    {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 "
     "OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
     "SLURM_PROCID=0 SLURM_NTASKS=1 PMIX_RANK=1",
     {"Open MPI", 1, 2, 1, 2, "127.0.0.1:29501"}},
    {"PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 "
     "MASTER_ADDR=::1",
     {"MPICH", 3, 4, 1, 2, "[::1]:29501"}},
    {"PMI_RANK=3 PMI_SIZE=4", {"PMI", 3, 4, -1, 0, ""}},
    /* What Slurm leaves. */
    {"SLURM_PROCID=3 SLURM_NTASKS=5 SLURM_LOCALID=0 MASTER_PORT=77 "
     "SLURM_STEP_NODELIST=gpu[03-06,9],x SLURM_JOB_NODELIST=y "
     "SLURM_LAUNCH_NODE_IPADDR=10.0.0.1",
     {"Slurm", 3, 5, 0, 0, "gpu03:78"}},
    {"SLURM_PROCID=3 SLURM_NTASKS=5 SLURM_LOCALID=4 PMI_RANK=3 PMI_SIZE=5 "
     "MASTER_ADDR=10.0.0.1 SLURM_JOB_NODELIST=y",
     {"Slurm", 3, 5, 4, 0, "10.0.0.1:29501"}},
    {"SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_JOB_NODELIST=rack[1-2]n[5,7],y "
     "SLURM_JOB_ID=1002003 SLURM_STEP_ID=4",
     {"Slurm", 1, 2, -1, 0, "rack1n5:22097"}},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_ID=7", {NULL, 0, 1, 0, 1, ""}},
};

static const struct {
    const char *environment, *because;
} mistakes[] = {
    {"RANK=2", "RANK is set and WORLD_SIZE is not"},
    {"WORLD_SIZE=2", "WORLD_SIZE is set and RANK is not"},
    {"RANK=2 WORLD_SIZE=2", "RANK is '2'; it must be a number from 0 to 1"},
    {"RANK=-1 WORLD_SIZE=2", "RANK is '-1'"},
    {"RANK=1x WORLD_SIZE=2", "RANK is '1x'"},
    {"RANK= WORLD_SIZE=2", "RANK is ''"},
    {"RANK=0 WORLD_SIZE=99999999999999999999", "WORLD_SIZE is '999"},
    {"RANK=0 WORLD_SIZE=0", "WORLD_SIZE is '0'"},
    {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=2", "LOCAL_RANK is '2'"},
    {"RANK=0 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2",
     "LOCAL_RANK is '2'; it must be a number from 0 to 1"},
    {"RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=3", "LOCAL_WORLD_SIZE is '3'"},
    {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=", "MASTER_ADDR is ''"},
    {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=65536",
     "MASTER_PORT is '65536'"},
    {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a LONGRING_PORT=x",
     "LONGRING_PORT is 'x'"},
    {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE is not"},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_NODELIST=a[1-3", "] is missing"},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_NODELIST=,", "no first node"},
};

static cp_status read_launch(const char *environment, cp_launch *out) {
    char words[512], *remaining = words;
    snprintf(words, sizeof(words), "%s", environment);
    clearenv();
    for (char *word = strtok_r(words, " ", &remaining); word != NULL;
         word = strtok_r(NULL, " ", &remaining)) {
        char *value = strchr(word, '=');
        *value = '\0';
        setenv(word, value + 1, 1);
    }
    return cp_launch_read(out);
}

LOOP(launchers_are_understood, 0, COUNT_OF(launches)) {
    const cp_launch *expected = &launches[_i].launch;
    cp_launch got;
    must(read_launch(launches[_i].environment, &got));
    ck_assert_pstr_eq(got.launcher, expected->launcher);
    ck_assert_int_eq(got.rank, expected->rank);
    ck_assert_int_eq(got.ranks, expected->ranks);
    ck_assert_int_eq(got.local, expected->local);
    ck_assert_int_eq(got.locals, expected->locals);
    ck_assert_str_eq(got.root, expected->root);
}

TEST(mistakes_in_the_environment_are_named) {
    cp_launch got;
    for (int n = 0; n < COUNT_OF(mistakes); n++)
        refuses(read_launch(mistakes[n].environment, &got), CP_INVALID,
                mistakes[n].because);
}
