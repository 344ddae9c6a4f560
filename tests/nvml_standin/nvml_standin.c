/* A stand-in for libnvidia-ml.so.1: the few NVML functions that sizewatch asks, answered from a text file.
 *
 * The file named by the environment variable NVML_STANDIN_STATE is looked at on every call, so a test changes the
 * machine while it runs. Without that variable no driver is loaded (code 9). Lines are "key=value", the last one wins:
 *
 *   driver=580.95.05   count=2
 *   N.uuid  N.name                          of GPU N
 *   N.total  N.free  N.reserved             bytes; version 1 of the memory call counts the reserved part as used
 *   N.util                                  percent
 *   N.samples=stamp:percent,...             the ring buffer of utilisation samples, stamps in microseconds
 *   N.sample_type                           NVML value type of the samples, 1 (unsigned int) by default
 *   N.samples_again=1                       the whole buffer is given, also what was seen before
 *   N.energy_mj  N.power_mw  N.limit_mw     N.celsius
 *   N.pids=pid,pid
 *   N.gone=1                                fallen off the bus: old handles answer 15, new ones are not found
 *   error.SYMBOL=code  N.error.SYMBOL=code  that call answers this code
 *   hang.SYMBOL=1      N.hang.SYMBOL=1      that call does not return while the line is there
 *
 * A value that is missing is one this product does not support (code 3). NVML_STANDIN_CALLS names a file to which the
 * name of every function called is appended.
 *
 * Symbols, structures and versions are those of the binding nvidia-ml-py 13.615.71.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, VERSION_MISMATCH = 25 };
enum { MEMORY_V2 = 0x02000028, TEMPERATURE_V1 = 0x0100000C, MOST_GPUS = 16, LONGEST_LINE = 8192 };

#define EXPORT __attribute__((visibility("default")))

typedef struct { int index; } Gpu;
typedef struct { unsigned long long total, free, used; } MemoryV1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned version; int sensor, celsius; } TemperatureV1;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
typedef union { double d; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; } Value;
typedef struct { unsigned long long stamp; Value value; } Sample;

static Gpu gpus[MOST_GPUS];
static int opened;

/* ---- the state file ---- */

/* The file as it was last read. It is read again when it is another file or was written since: tests replace it whole. */
static char *text;
static struct stat seen;

static const char *state(void) {
    const char *path = getenv("NVML_STANDIN_STATE");
    struct stat now;
    if (!path || stat(path, &now)) return NULL;
    int same = text && now.st_ino == seen.st_ino && now.st_size == seen.st_size
               && now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec;
    if (same) return text;
    FILE *file = fopen(path, "r");
    if (!file) return NULL;
    text = realloc(text, (size_t)now.st_size + 1);
    text[fread(text, 1, (size_t)now.st_size, file)] = 0;
    fclose(file);
    seen = now;
    return text;
}

static int lookup(const char *key, char *value) {
    const char *line = state();
    size_t length = strlen(key);
    int found = 0;
    while (line && *line) {
        const char *end = strchrnul(line, '\n');
        if (!strncmp(line, key, length) && line[length] == '=') {
            size_t size = (size_t)(end - line) - length - 1;
            if (size >= LONGEST_LINE) size = LONGEST_LINE - 1;
            memcpy(value, line + length + 1, size);
            value[size] = 0;
            found = 1;
        }
        line = *end ? end + 1 : end;
    }
    return found;
}

static int lookup_of(const Gpu *gpu, const char *name, char *value) {
    char key[160];
    snprintf(key, sizeof key, "%d.%s", gpu->index, name);
    return lookup(key, value);
}

static int number_of(const Gpu *gpu, const char *name, unsigned long long *number) {
    char value[LONGEST_LINE];
    if (!lookup_of(gpu, name, value)) return NOT_SUPPORTED;
    *number = strtoull(value, NULL, 10);
    return SUCCESS;
}

static unsigned count_of_gpus(void) {
    char value[LONGEST_LINE];
    return lookup("count", value) ? (unsigned)atoi(value) : 0;
}

/* ---- what every call does first ---- */

static void note_call(const char *symbol) {
    const char *path = getenv("NVML_STANDIN_CALLS");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "%s\n", symbol);
    fclose(file);
}

static int hang_or_fail(const Gpu *gpu, const char *symbol) {
    char name[128], value[LONGEST_LINE];
    struct timespec nap = { 0, 2000000 };
    snprintf(name, sizeof name, "hang.%s", symbol);
    while (gpu ? lookup_of(gpu, name, value) : lookup(name, value)) nanosleep(&nap, NULL);
    snprintf(name, sizeof name, "error.%s", symbol);
    return (gpu ? lookup_of(gpu, name, value) : lookup(name, value)) ? atoi(value) : SUCCESS;
}

static int enter(const char *symbol) {
    note_call(symbol);
    return hang_or_fail(NULL, symbol);
}

static int enter_gpu(const char *symbol, const Gpu *gpu) {
    char value[LONGEST_LINE];
    int code = enter(symbol);
    if (code) return code;
    if (!opened) return UNINITIALIZED;
    if (gpu < gpus || gpu >= gpus + MOST_GPUS) return INVALID_ARGUMENT;
    if ((unsigned)gpu->index >= count_of_gpus() || lookup_of(gpu, "gone", value)) return GPU_IS_LOST;
    return hang_or_fail(gpu, symbol);
}

#define ENTER do { int code_ = enter(__func__); if (code_) return code_; } while (0)
#define ENTER_OPEN do { ENTER; if (!opened) return UNINITIALIZED; } while (0)
#define ENTER_GPU do { int code_ = enter_gpu(__func__, gpu); if (code_) return code_; } while (0)

static int give_text(const char *text, char *buffer, unsigned size) {
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return SUCCESS;
}

static int give_text_of(const Gpu *gpu, const char *name, char *buffer, unsigned size) {
    char value[LONGEST_LINE];
    return lookup_of(gpu, name, value) ? give_text(value, buffer, size) : NOT_SUPPORTED;
}

static int give_unsigned(const Gpu *gpu, const char *name, unsigned *out) {
    unsigned long long number = 0;
    int code = number_of(gpu, name, &number);
    if (!code) *out = (unsigned)number;
    return code;
}

/* ---- the library ---- */

/* Not NVML: how many times it is open, and a fresh start for the next test. */
EXPORT int standin_opened(void) { return opened; }
EXPORT void standin_reset(void) { opened = 0; }

EXPORT const char *nvmlErrorString(int code) { (void)code; return "error of the stand-in"; }

EXPORT int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    ENTER;
    if (!getenv("NVML_STANDIN_STATE")) return DRIVER_NOT_LOADED;
    for (int i = 0; i < MOST_GPUS; i++) gpus[i].index = i;
    opened++;
    return SUCCESS;
}

EXPORT int nvmlShutdown(void) { ENTER_OPEN; opened--; return SUCCESS; }

EXPORT int nvmlSystemGetDriverVersion(char *buffer, unsigned size) {
    char value[LONGEST_LINE];
    ENTER_OPEN;
    return lookup("driver", value) ? give_text(value, buffer, size) : NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count) { ENTER_OPEN; *count = count_of_gpus(); return SUCCESS; }

/* ---- finding a GPU ---- */

static int found(int index, Gpu **gpu) {
    char value[LONGEST_LINE];
    if (lookup_of(&gpus[index], "gone", value)) return NOT_FOUND;
    *gpu = &gpus[index];
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu) {
    ENTER_OPEN;
    return index < count_of_gpus() && index < MOST_GPUS ? found((int)index, gpu) : INVALID_ARGUMENT;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, Gpu **gpu) {
    char value[LONGEST_LINE];
    ENTER_OPEN;
    for (unsigned i = 0; i < count_of_gpus() && i < MOST_GPUS; i++)
        if (lookup_of(&gpus[i], "uuid", value) && !strcmp(value, uuid)) return found((int)i, gpu);
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetUUID(Gpu *gpu, char *buffer, unsigned size) {
    ENTER_GPU;
    return give_text_of(gpu, "uuid", buffer, size);
}

EXPORT int nvmlDeviceGetName(Gpu *gpu, char *buffer, unsigned size) {
    ENTER_GPU;
    return give_text_of(gpu, "name", buffer, size);
}

/* ---- what it says ---- */

static int memory(const Gpu *gpu, MemoryV2 *out) {
    int code = number_of(gpu, "total", &out->total);
    if (!code) code = number_of(gpu, "free", &out->free);
    if (code) return code;
    if (number_of(gpu, "reserved", &out->reserved)) out->reserved = 0;
    out->used = out->total - out->free - out->reserved;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo(Gpu *gpu, MemoryV1 *out) {
    MemoryV2 all = { 0, 0, 0, 0, 0 };
    ENTER_GPU;
    int code = memory(gpu, &all);
    if (!code) *out = (MemoryV1){ all.total, all.free, all.used + all.reserved };
    return code;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(Gpu *gpu, MemoryV2 *out) {
    ENTER_GPU;
    return out->version == MEMORY_V2 ? memory(gpu, out) : VERSION_MISMATCH;
}

EXPORT int nvmlDeviceGetUtilizationRates(Gpu *gpu, Rates *out) {
    ENTER_GPU;
    out->memory = 0;
    return give_unsigned(gpu, "util", &out->gpu);
}

EXPORT int nvmlDeviceGetSamples(Gpu *gpu, int type, unsigned long long after, int *value_type, unsigned *count,
                                Sample *out) {
    char list[LONGEST_LINE];
    unsigned long long kind = 1, again = 0;
    unsigned given = 0;
    ENTER_GPU;
    if (type != 1 || !lookup_of(gpu, "samples", list)) return NOT_SUPPORTED;
    if (number_of(gpu, "sample_type", &kind)) kind = 1;
    *value_type = (int)kind;
    if (!number_of(gpu, "samples_again", &again)) after = 0;
    char *rest = NULL;
    for (char *item = strtok_r(list, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) {
        char *percent = strchr(item, ':');
        unsigned long long stamp = strtoull(item, NULL, 10);
        if (!percent || stamp <= after) continue;
        if (out && given < *count) {
            out[given].stamp = stamp;
            if (kind == 0) out[given].value.d = atof(percent + 1);
            else out[given].value.ull = strtoull(percent + 1, NULL, 10);
        }
        if (!out || given < *count) given++;
    }
    *count = given;
    return given ? SUCCESS : NOT_FOUND;
}

EXPORT int nvmlDeviceGetTotalEnergyConsumption(Gpu *gpu, unsigned long long *out) {
    ENTER_GPU;
    return number_of(gpu, "energy_mj", out);
}

EXPORT int nvmlDeviceGetPowerUsage(Gpu *gpu, unsigned *out) { ENTER_GPU; return give_unsigned(gpu, "power_mw", out); }

EXPORT int nvmlDeviceGetEnforcedPowerLimit(Gpu *gpu, unsigned *out) {
    ENTER_GPU;
    return give_unsigned(gpu, "limit_mw", out);
}

EXPORT int nvmlDeviceGetTemperature(Gpu *gpu, int sensor, unsigned *out) {
    ENTER_GPU;
    return sensor ? INVALID_ARGUMENT : give_unsigned(gpu, "celsius", out);
}

EXPORT int nvmlDeviceGetTemperatureV(Gpu *gpu, TemperatureV1 *out) {
    unsigned celsius = 0;
    ENTER_GPU;
    if (out->version != TEMPERATURE_V1) return VERSION_MISMATCH;
    int code = out->sensor ? INVALID_ARGUMENT : give_unsigned(gpu, "celsius", &celsius);
    if (!code) out->celsius = (int)celsius;
    return code;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *out) {
    char list[LONGEST_LINE] = "";
    unsigned given = 0, room = *count;
    ENTER_GPU;
    lookup_of(gpu, "pids", list);
    char *rest = NULL;
    for (char *item = strtok_r(list, ",", &rest); item; item = strtok_r(NULL, ",", &rest), given++)
        if (out && given < room) out[given] = (Process){ (unsigned)atoi(item), 0, ~0u, ~0u };
    *count = given;
    return given > room ? INSUFFICIENT_SIZE : SUCCESS;
}
