/* What this machine is, in the words of the data files' first line. */
#define _GNU_SOURCE
#include "ground/host.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#ifndef CP_COMMIT
#define CP_COMMIT "unknown"
#endif

typedef struct {
    char name[128];
    long family, model;
} processor;

static void fact_take(processor *it, const char *line) {
    const char *value = strchr(line, ':');
    if (value == NULL)
        return;
    value += strspn(value, ": ");
    if (strncmp(line, "model name", 10) == 0 && it->name[0] == '\0')
        snprintf(it->name, sizeof(it->name), "%.*s", (int)strcspn(value, "\n"),
                 value);
    else if (strncmp(line, "cpu family", 10) == 0)
        it->family = strtol(value, NULL, 10);
    else if (strncmp(line, "model\t", 6) == 0)
        it->model = strtol(value, NULL, 10);
}

static processor processor_read(void) {
    processor it = {.model = -1};
    char line[4096];
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        fact_take(&it, line);
    if (file != NULL)
        fclose(file);
    return it;
}

static int zen_generation(const processor *it) {
    const long m = it->model;
    if (strstr(it->name, "AMD") == NULL || m < 0)
        return 0;
    if (it->family == 26)
        return 5;
    if (it->family != 25)
        return 0;
    return m < 0x10 || (m >= 0x20 && m < 0x60) ? 3 : 4;
}

static void processor_name(char *text, size_t size) {
    const processor it = processor_read();
    const int zen = zen_generation(&it);
    const char *name = strstr(it.name, "EPYC") != NULL ? "AMD EPYC" : it.name;
    struct utsname system;
    if (zen > 0)
        snprintf(text, size, "%s (Zen %d)", name, zen);
    else if (it.name[0] != '\0')
        snprintf(text, size, "%s", it.name);
    else
        snprintf(text, size, "%s",
                 uname(&system) == 0 ? system.machine : "an unknown kind");
}

static void release_read(const char *key, char *text, size_t size) {
    char line[256];
    FILE *file = fopen("/etc/os-release", "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, key, strlen(key)) == 0) {
            const char *value = line + strlen(key);
            value += strspn(value, "\"");
            snprintf(text, size, "%.*s", (int)strcspn(value, "\" \n"), value);
        }
    if (file != NULL)
        fclose(file);
}

int cp_host_cores(void) {
    cpu_set_t mine;
    if (sched_getaffinity(0, sizeof(mine), &mine) == 0)
        return CPU_COUNT(&mine);
    return (int)cp_max(1, sysconf(_SC_NPROCESSORS_ONLN));
}

void cp_host_describe(char *text, size_t size) {
    char name[160], system[64] = "Linux", version[32] = "";
    processor_name(name, sizeof(name));
    release_read("NAME=", system, sizeof(system));
    release_read("VERSION_ID=", version, sizeof(version));
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
