/* The library, its GPUs, and what a GPU says of itself now. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "standin.h"

typedef struct { unsigned long long total, free, used; } MemoryV1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned version; int sensor, celsius; } TemperatureV1;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
typedef struct { unsigned long long stamp; Value value; } Sample;

/* ---- the library ---- */

/* Not NVML: how many times it is open, what it has lent (samples, event sets), and a fresh start for the next test. */
EXPORT int standin_opened(void) { return opened; }
EXPORT int standin_lent(void) { return lent; }
EXPORT void standin_reset(void) { opened = lent = 0; last_event = 0; }

EXPORT const char *nvmlErrorString(int code) { (void)code; return "error of the stand-in"; }

EXPORT int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    ENTER;
    if (!getenv("NVML_STANDIN_STATE")) return DRIVER_NOT_LOADED;
    for (int i = 0; i < MOST_GPUS; i++) {
        gpus[i] = (Gpu){ i, -1 };
        for (int p = 0; p < MOST_PLACES; p++) places[i][p] = (Gpu){ i, p };
    }
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
    ENTER_WHOLE;
    out->memory = 0;
    return give_unsigned(gpu, "util", &out->gpu);
}

EXPORT int nvmlDeviceGetSamples(Gpu *gpu, int type, unsigned long long after, int *value_type, unsigned *count,
                                Sample *out) {
    char list[LONGEST_LINE];
    unsigned long long kind = 1, again = 0;
    unsigned given = 0;
    ENTER_WHOLE;
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
    ENTER_WHOLE;
    return number_of(gpu, "energy_mj", out);
}

EXPORT int nvmlDeviceGetPowerUsage(Gpu *gpu, unsigned *out) { ENTER_WHOLE; return give_unsigned(gpu, "power_mw", out); }

EXPORT int nvmlDeviceGetEnforcedPowerLimit(Gpu *gpu, unsigned *out) {
    ENTER_WHOLE;
    return give_unsigned(gpu, "limit_mw", out);
}

EXPORT int nvmlDeviceGetTemperature(Gpu *gpu, int sensor, unsigned *out) {
    ENTER_WHOLE;
    return sensor ? INVALID_ARGUMENT : give_unsigned(gpu, "celsius", out);
}

EXPORT int nvmlDeviceGetTemperatureV(Gpu *gpu, TemperatureV1 *out) {
    unsigned celsius = 0;
    ENTER_WHOLE;
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
