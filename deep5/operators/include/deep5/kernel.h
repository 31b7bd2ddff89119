/* The one interface between compiled operators and frameworks: what every shim calls and every operator offers.
 *
 * Plain C, so that a shim needs neither C++ nor a framework's headers. Memory belongs to the caller; nothing is kept
 * between calls. All functions may be called from any thread.
 */
#ifndef DEEP5_KERNEL_H
#define DEEP5_KERNEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DEEP5_MAX_RANK 16
#define DEEP5_MAX_TENSORS 64

/* Element types, numbered as ONNX numbers them. */
enum {
  DEEP5_FLOAT32 = 1,
  DEEP5_UINT8 = 2,
  DEEP5_INT8 = 3,
  DEEP5_UINT16 = 4,
  DEEP5_INT16 = 5,
  DEEP5_INT32 = 6,
  DEEP5_INT64 = 7,
  DEEP5_BOOL = 9,
  DEEP5_FLOAT16 = 10,
  DEEP5_FLOAT64 = 11,
  DEEP5_UINT32 = 12,
  DEEP5_UINT64 = 13,
  DEEP5_BFLOAT16 = 16
};

typedef struct deep5_tensor {
  void *data;
  const int64_t *shape;   /* rank extents */
  const int64_t *strides; /* in elements; NULL where the memory is C-contiguous */
  int32_t rank;
  int32_t dtype;
} deep5_tensor;

/* An operator in one direction, for inputs of fixed element types and ranks of any number. */
typedef struct deep5_kernel deep5_kernel;
struct deep5_kernel {
  int32_t inputs;
  int32_t outputs;
  /* Element types: of the inputs, then of the outputs. */
  int32_t dtypes[DEEP5_MAX_TENSORS];
  /* Whether an input may be strided; others must be C-contiguous, as all outputs must. */
  int32_t strided[DEEP5_MAX_TENSORS];
  /* Shapes of the outputs from those of the inputs: sets outputs[i].rank and writes the extents to outputs[i].shape,
   * which has room for DEEP5_MAX_RANK. 0, or an error code. */
  int (*shapes)(deep5_kernel *self, const deep5_tensor *inputs, deep5_tensor *outputs);
  /* Computes the outputs, whose memory is the caller's. 0, or an error code. `stream` is the device's, NULL on the
   * host. */
  int (*run)(deep5_kernel *self, const deep5_tensor *inputs, const deep5_tensor *outputs, void *stream);
  /* What went wrong in this thread's last call that failed. */
  const char *(*error)(deep5_kernel *self);
  /* How many threads a call may use, read at every call; 0: as many as OpenMP has. */
  const int32_t *threads;
};

#ifdef __cplusplus
}
#endif

#endif
