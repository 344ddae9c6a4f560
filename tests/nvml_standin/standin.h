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
 *   N.field.ID                              value of a field (nvmlDeviceGetFieldValues); N.field.ID.type its NVML value
 *                                           type, 3 (unsigned long long) by default; N.field.ID.return a code instead
 *   N.violation.POLICY                      nanoseconds;  N.reasons  bits of what holds the clocks down now
 *   N.ecc.TYPE.COUNTER                      errors (nvmlDeviceGetTotalEccErrors)
 *   N.gpm=1                                 GPM is supported; its counters are cumulative, as in the hardware:
 *   N.gpm.clock  N.gpm.METRIC               seconds, and percent times seconds; N.gpm.METRIC.return a code instead
 *   N.gi.G.gpm.clock  N.gi.G.gpm.METRIC     the same of GPU instance G
 *   N.mig=1                                 MIG is on. Instance in place P of the N.mig.places (7 by default):
 *   N.mig.P.uuid  N.mig.P.name  N.mig.P.gi  its UUID, name and GPU instance; a place without a UUID is empty
 *   N.mig.P.total ... N.mig.P.pids          as of a GPU. What only a whole GPU is asked answers 2 for an instance.
 *   events=SEQ:GPU:XID:GI,...               faults; each is given once, in order, to a set that the GPU is registered in;
 *                                           GI is the GPU instance, or "-" for the whole GPU
 *   N.gone=1                                fallen off the bus: old handles answer 15, new ones are not found
 *   error.SYMBOL=code  N.error.SYMBOL=code  that call answers this code
 *   hang.SYMBOL=1      N.hang.SYMBOL=1      that call does not return while the line is there
 *
 * A value that is missing is one this product does not support (code 3). NVML_STANDIN_CALLS names a file to which the
 * name of every function called is appended.
 *
 * benchmarks/nvml_cycle.py --record writes down a real machine in this form.
 *
 * Symbols, structures and versions are those of the binding nvidia-ml-py 13.615.71.
 */
#ifndef STANDIN_H
#define STANDIN_H

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, VERSION_MISMATCH = 25 };
enum { MEMORY_V2 = 0x02000028, TEMPERATURE_V1 = 0x0100000C, GPM_METRICS_V1 = 1, GPM_SUPPORT_V1 = 1, XID_EVENT = 8 };
enum { MOST_GPUS = 16, MOST_PLACES = 8, MOST_METRICS = 64, LONGEST_LINE = 8192 };

#define EXPORT __attribute__((visibility("default")))

/* A whole GPU has place -1, a MIG instance that of its GPU's list. */
typedef struct { int index, place; } Gpu;
typedef union { double d; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; } Value;

extern Gpu gpus[MOST_GPUS];
extern Gpu places[MOST_GPUS][MOST_PLACES];
extern int opened, lent;
extern long last_event;

/* Of the state file: whether the key is there, and its text. */
int lookup(const char *key, char *value);
int lookup_of(const Gpu *gpu, const char *name, char *value);
/* The same as a number, or NOT_SUPPORTED. */
int number_of(const Gpu *gpu, const char *name, unsigned long long *number);
unsigned count_of_gpus(void);

/* What every call does first: note itself, hang or fail if it is told to, and look at its handle. */
int enter(const char *symbol);
int enter_gpu(const char *symbol, const Gpu *gpu);
int enter_whole(const char *symbol, const Gpu *gpu);
int is_instance(const Gpu *gpu);

#define ENTER do { int code_ = enter(__func__); if (code_) return code_; } while (0)
#define ENTER_OPEN do { ENTER; if (!opened) return UNINITIALIZED; } while (0)
#define ENTER_GPU do { int code_ = enter_gpu(__func__, gpu); if (code_) return code_; } while (0)
#define ENTER_WHOLE do { int code_ = enter_whole(__func__, gpu); if (code_) return code_; } while (0)

int give_text(const char *text, char *buffer, unsigned size);
int give_text_of(const Gpu *gpu, const char *name, char *buffer, unsigned size);
int give_unsigned(const Gpu *gpu, const char *name, unsigned *out);

#endif
