/* MIG instances, throttling and memory errors, GPM, and faults. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

typedef struct { unsigned field, scope; long long stamp, latency; int value_type, code; Value value; } FieldValue;
typedef struct { unsigned long long reference, violation; } Violation;
typedef struct { unsigned version, supported; } GpmSupport;
typedef struct { double clock, total[MOST_METRICS]; int code[MOST_METRICS]; } GpmSample;
typedef struct { unsigned id; int code; double value; const char *names[3]; } GpmMetric;
typedef struct { unsigned version, count; GpmSample *first, *second; GpmMetric metrics[]; } GpmMetrics;
typedef struct { Gpu *gpu; unsigned long long type, data; unsigned gpu_instance, compute_instance; } Event;
typedef struct { int registered[MOST_GPUS]; } EventSet;

/* ---- MIG ---- */

EXPORT int nvmlDeviceGetMigMode(Gpu *gpu, unsigned *current, unsigned *pending) {
    ENTER_WHOLE;
    int code = give_unsigned(gpu, "mig", current);
    if (!code) *pending = *current;
    return code;
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(Gpu *gpu, unsigned *count) {
    ENTER_WHOLE;
    if (give_unsigned(gpu, "mig.places", count)) *count = 7;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(Gpu *gpu, unsigned place, Gpu **instance) {
    char value[LONGEST_LINE];
    ENTER_WHOLE;
    if (place >= MOST_PLACES) return INVALID_ARGUMENT;
    if (!lookup_of(&places[gpu->index][place], "uuid", value)) return NOT_FOUND;
    *instance = &places[gpu->index][place];
    return SUCCESS;
}

EXPORT int nvmlDeviceGetGpuInstanceId(Gpu *gpu, unsigned *out) {
    ENTER_GPU;
    return is_instance(gpu) ? give_unsigned(gpu, "gi", out) : NOT_SUPPORTED;
}

/* ---- throttling and memory errors ---- */

EXPORT int nvmlDeviceGetFieldValues(Gpu *gpu, int count, FieldValue *out) {
    char name[64], value[LONGEST_LINE];
    ENTER_WHOLE;
    for (int i = 0; i < count; i++) {
        unsigned long long type = 3, code = NOT_SUPPORTED;
        snprintf(name, sizeof name, "field.%u.return", out[i].field);
        int refused = !number_of(gpu, name, &code);
        snprintf(name, sizeof name, "field.%u.type", out[i].field);
        number_of(gpu, name, &type);
        snprintf(name, sizeof name, "field.%u", out[i].field);
        out[i].value_type = (int)type;
        out[i].code = !refused && lookup_of(gpu, name, value) ? SUCCESS : (int)code;
        if (out[i].code) continue;
        if (type == 0) out[i].value.d = atof(value);
        else if (type == 1) out[i].value.ui = (unsigned)strtoul(value, NULL, 10);
        else out[i].value.ull = strtoull(value, NULL, 10);
    }
    return SUCCESS;
}

EXPORT int nvmlDeviceGetViolationStatus(Gpu *gpu, int policy, Violation *out) {
    char name[64];
    ENTER_WHOLE;
    snprintf(name, sizeof name, "violation.%d", policy);
    out->reference = 0;
    return number_of(gpu, name, &out->violation);
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(Gpu *gpu, unsigned long long *out) {
    ENTER_WHOLE;
    return number_of(gpu, "reasons", out);
}

EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(Gpu *gpu, unsigned long long *out) {
    ENTER_WHOLE;
    return number_of(gpu, "reasons", out);
}

EXPORT int nvmlDeviceGetTotalEccErrors(Gpu *gpu, int type, int counter, unsigned long long *out) {
    char name[64];
    ENTER_WHOLE;
    snprintf(name, sizeof name, "ecc.%d.%d", type, counter);
    return number_of(gpu, name, out);
}

/* ---- GPM ---- */

EXPORT int nvmlGpmQueryDeviceSupport(Gpu *gpu, GpmSupport *out) {
    unsigned long long supported = 0;
    ENTER_WHOLE;
    if (out->version != GPM_SUPPORT_V1) return VERSION_MISMATCH;
    number_of(gpu, "gpm", &supported);
    out->supported = supported != 0;
    return SUCCESS;
}

EXPORT int nvmlGpmSampleAlloc(GpmSample **out) {
    ENTER_OPEN;
    *out = calloc(1, sizeof **out);
    lent++;
    return SUCCESS;
}

EXPORT int nvmlGpmSampleFree(GpmSample *sample) {
    ENTER_OPEN;
    if (!sample) return INVALID_ARGUMENT;
    free(sample);
    lent--;
    return SUCCESS;
}

static int take_sample(const Gpu *gpu, const char *of, GpmSample *out) {
    char name[96], value[LONGEST_LINE];
    unsigned long long supported = 0, code;
    if (number_of(gpu, "gpm", &supported) || !supported) return NOT_SUPPORTED;
    snprintf(name, sizeof name, "%sgpm.clock", of);
    if (!lookup_of(gpu, name, value)) return INVALID_ARGUMENT;
    out->clock = atof(value);
    for (int metric = 0; metric < MOST_METRICS; metric++) {
        snprintf(name, sizeof name, "%sgpm.%d.return", of, metric);
        out->code[metric] = number_of(gpu, name, &code) ? SUCCESS : (int)code;
        snprintf(name, sizeof name, "%sgpm.%d", of, metric);
        if (lookup_of(gpu, name, value)) out->total[metric] = atof(value);
        else if (!out->code[metric]) out->code[metric] = NOT_SUPPORTED;
    }
    return SUCCESS;
}

EXPORT int nvmlGpmSampleGet(Gpu *gpu, GpmSample *out) { ENTER_WHOLE; return take_sample(gpu, "", out); }

EXPORT int nvmlGpmMigSampleGet(Gpu *gpu, unsigned instance, GpmSample *out) {
    char of[32];
    ENTER_WHOLE;
    snprintf(of, sizeof of, "gi.%u.", instance);
    return take_sample(gpu, of, out);
}

EXPORT int nvmlGpmMetricsGet(GpmMetrics *request) {
    ENTER_OPEN;
    if (request->version != GPM_METRICS_V1) return VERSION_MISMATCH;
    double seconds = request->second->clock - request->first->clock;
    for (unsigned i = 0; i < request->count; i++) {
        GpmMetric *metric = &request->metrics[i];
        if (metric->id >= MOST_METRICS || seconds < 0) { metric->code = INVALID_ARGUMENT; continue; }
        metric->code = request->second->code[metric->id];
        metric->value = (request->second->total[metric->id] - request->first->total[metric->id]) / seconds;
    }
    return SUCCESS;
}

/* ---- events ---- */

EXPORT int nvmlEventSetCreate(EventSet **out) {
    ENTER_OPEN;
    *out = calloc(1, sizeof **out);
    lent++;
    return SUCCESS;
}

EXPORT int nvmlEventSetFree(EventSet *set) { ENTER_OPEN; free(set); lent--; return SUCCESS; }

EXPORT int nvmlDeviceRegisterEvents(Gpu *gpu, unsigned long long types, EventSet *set) {
    ENTER_WHOLE;
    if (types & XID_EVENT) set->registered[gpu->index]++;
    return SUCCESS;
}

/* A GPU that was registered twice reports twice. What a timeout of 0 means is not documented: none may ask it. */
EXPORT int nvmlEventSetWait_v2(EventSet *set, Event *out, unsigned milliseconds) {
    static int again;
    char list[LONGEST_LINE];
    ENTER_OPEN;
    if (!milliseconds) return INVALID_ARGUMENT;
    if (!lookup("events", list)) return TIMEOUT;
    char *rest = NULL;
    for (char *item = strtok_r(list, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) {
        long number = strtol(item, &item, 10);
        long index = strtol(item + 1, &item, 10), xid = strtol(item + 1, &item, 10);
        if (number <= last_event || index < 0 || index >= MOST_GPUS || !set->registered[index]) continue;
        unsigned instance = item[1] == '-' ? ~0u : (unsigned)strtoul(item + 1, NULL, 10);
        *out = (Event){ &gpus[index], XID_EVENT, (unsigned long long)xid, instance, ~0u };
        if (++again >= set->registered[index]) { last_event = number; again = 0; }
        return SUCCESS;
    }
    return TIMEOUT;
}
