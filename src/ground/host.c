/* A description of this machine, as in the data files' first line. */
#define _GNU_SOURCE
#include "ground/host.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#ifndef CP_COMMIT
#define CP_COMMIT "unknown"
#endif

void cp_host_fact(const char *path, const char *key, char text[128]) {
    char line[4096];
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, key, strlen(key)) != 0)
            continue;
        const char *value = line + strlen(key);
        value += strspn(value, "\t :=\"");
        snprintf(text, 128, "%.*s", (int)strcspn(value, "\"\n"), value);
        break;
    }
    if (file != NULL)
        fclose(file);
}

static int zen_generation(void) {
    char family[128] = "", model[128] = "";
    cp_host_fact("/proc/cpuinfo", "cpu family", family);
    cp_host_fact("/proc/cpuinfo", "model\t", model);
    const long m = strtol(model, NULL, 10);
    if (strcmp(family, "26") == 0)
        return 5;
    if (strcmp(family, "25") != 0)
        return 0;
    return m < 0x10 || (m >= 0x20 && m < 0x60) ? 3 : 4;
}

static void processor_name(char text[160]) {
    char name[128] = "an unknown kind";
    struct utsname system;
    if (uname(&system) == 0)
        snprintf(name, sizeof(name), "%s", system.machine);
    cp_host_fact("/proc/cpuinfo", "model name", name);
    const int zen = strstr(name, "AMD") != NULL ? zen_generation() : 0;
    if (zen > 0)
        snprintf(text, 160, "%s (Zen %d)",
                 strstr(name, "EPYC") != NULL ? "AMD EPYC" : name, zen);
    else
        snprintf(text, 160, "%s", name);
}

/* The cores, rounded up, that a directory's quota allows; without a quota,
 * `cores`. Version 1 has quota and period in two files. */
static int64_t quota_of(const char *directory, bool first, int64_t cores) {
    char path[1200], text[2][128] = {"", ""};
    long quota, period;
    snprintf(path, sizeof(path), "%s/%s", directory,
             first ? "cpu.cfs_quota_us" : "cpu.max");
    cp_host_fact(path, "", text[0]);
    snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", directory);
    if (first)
        cp_host_fact(path, "", text[1]);
    char *end = text[0];
    quota = strtol(text[0], &end, 10);
    period = strtol(first ? text[1] : end, NULL, 10);
    if (end == text[0] || quota <= 0 || period <= 0)
        return cores;
    return cp_min(cores, cp_ceil_divide(quota, period));
}

/* The smallest quota of a control group and its ancestors. A container may see
 * its own group as the root, so directories may be missing; they have no
 * quota. */
static int64_t quotas_along(const char *mount, char *group, bool first,
                            int64_t cores) {
    char directory[1000];
    for (;;) {
        snprintf(directory, sizeof(directory), "%s%s", mount, group);
        cores = quota_of(directory, first, cores);
        char *last = strrchr(group, '/');
        if (last == NULL)
            return cores;
        *last = '\0';
    }
}

/* Lines are "0::/group" for version 2, "4:cpu,cpuacct:/group" for version 1. */
static int64_t quotas(const char *root, int64_t cores) {
    char path[256], line[600];
    snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *tail, *controllers, *group;
        strtok_r(line, ":", &tail);
        controllers = tail;
        group = controllers != NULL ? strchr(controllers, ':') : NULL;
        if (group == NULL)
            continue;
        *group++ = '\0';
        const bool first = controllers[0] != '\0';
        const bool cpu = strncmp(controllers, "cpu,", 4) == 0 ||
                         strcmp(controllers, "cpu") == 0 ||
                         strstr(controllers, ",cpu,") != NULL;
        snprintf(path, sizeof(path), "%s/sys/fs/cgroup%s%s", root,
                 first ? "/" : "", controllers);
        if (!first || cpu)
            cores = quotas_along(path, group, first, cores);
    }
    if (file != NULL)
        fclose(file);
    return cores;
}

cp_status cp_host_limit(const cp_host_limits *limits, int *cores) {
    int64_t most = cp_max(1, limits->affinity);
    most = quotas(limits->root, most);
    *cores = (int)most;
    if (limits->threads == NULL)
        return CP_OK;
    char *end;
    const long threads = strtol(limits->threads, &end, 10);
    if (end == limits->threads || (*end != '\0' && *end != ',') ||
        threads < 1 || threads > CP_HOST_CORES)
        return cp_refuse("OMP_NUM_THREADS is '%s'; expected a number from 1 to "
                         "%d",
                         limits->threads, CP_HOST_CORES);
    *cores = (int)cp_min(most, threads);
    return CP_OK;
}

static int cores_here;
static cp_status checked;
static char complaint[512];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void count_cores(void) {
    cpu_set_t affinity;
    const bool known = sched_getaffinity(0, sizeof(affinity), &affinity) == 0;
    const cp_host_limits limits = {known ? CPU_COUNT(&affinity)
                                         : sysconf(_SC_NPROCESSORS_ONLN),
                                   getenv("OMP_NUM_THREADS"), ""};
    checked = cp_host_limit(&limits, &cores_here);
    if (checked != CP_OK)
        snprintf(complaint, sizeof(complaint), "%s", cp_message());
}

int cp_host_cores(void) {
    pthread_once(&once, count_cores);
    return cores_here;
}

cp_status cp_host_check(void) {
    pthread_once(&once, count_cores);
    return checked == CP_OK ? CP_OK : cp_fail(checked, "%s", complaint);
}

void cp_host_describe(char *text, size_t size) {
    char name[160], system[128] = "Linux", version[128] = "";
    processor_name(name);
    cp_host_fact("/etc/os-release", "NAME", system);
    cp_host_fact("/etc/os-release", "VERSION_ID", version);
    system[strcspn(system, " ")] = '\0';
#ifdef __clang__
    const char *compiler = "clang " __clang_version__;
#else
    const char *compiler = "gcc " __VERSION__;
#endif
    snprintf(text, size, "%d cores of %s, %s%s%s, %s", cp_host_cores(), name,
             system, version[0] != '\0' ? " " : "", version, compiler);
}

void cp_host_sign(FILE *out) {
    char machine[320], date[32];
    const time_t today = time(NULL);
    cp_host_describe(machine, sizeof(machine));
    strftime(date, sizeof(date), "%Y-%m-%d", localtime(&today));
    fprintf(out, "# machine: %s\n# date: %s\n# commit: %s\n", machine, date,
            CP_COMMIT);
}
