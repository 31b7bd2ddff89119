/* Compiled operators as one TensorFlow operation: "Deep5Operator", registered through TensorFlow's C API.
 *
 * An attribute of the operation identifies the kernel by a number, which is invalid in another process, or once the
 * kernel is freed. Memory is TensorFlow's; nothing is copied. TensorFlow is already loaded, but only for Python: this
 * file looks its functions up in its library, so that its headers need not be installed.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deep5/kernel.h"

typedef struct TF_Status TF_Status;
typedef struct TF_Tensor TF_Tensor;
typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_KernelBuilder TF_KernelBuilder;
typedef struct TF_OpKernelConstruction TF_OpKernelConstruction;
typedef struct TF_OpKernelContext TF_OpKernelContext;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
enum { OK = 0, UNKNOWN = 2, INVALID_ARGUMENT = 3, FAILED_PRECONDITION = 9 };

#define FUNCTIONS(X)                                                                                             \
  X(TF_Status *, TF_NewStatus, (void))                                                                           \
  X(void, TF_DeleteStatus, (TF_Status *))                                                                        \
  X(void, TF_SetStatus, (TF_Status *, int code, const char *text))                                               \
  X(int, TF_GetCode, (const TF_Status *))                                                                        \
  X(const char *, TF_Message, (const TF_Status *))                                                               \
  X(TF_OpDefinitionBuilder *, TF_NewOpDefinitionBuilder, (const char *name))                                     \
  X(void, TF_OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder *, const char *spec))                           \
  X(void, TF_OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder *, const char *spec))                          \
  X(void, TF_OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder *, const char *spec))                         \
  X(void, TF_OpDefinitionBuilderSetShapeInferenceFunction,                                                       \
    (TF_OpDefinitionBuilder *, void (*)(TF_ShapeInferenceContext *, TF_Status *)))                               \
  X(void, TF_RegisterOpDefinition, (TF_OpDefinitionBuilder *, TF_Status *))                                      \
  X(void, TF_ShapeInferenceContextSetUnknownShape, (TF_ShapeInferenceContext *, TF_Status *))                    \
  X(TF_KernelBuilder *, TF_NewKernelBuilder,                                                                     \
    (const char *op, const char *device, void *(*)(TF_OpKernelConstruction *),                                   \
     void (*)(void *, TF_OpKernelContext *), void (*)(void *)))                                                  \
  X(void, TF_RegisterKernelBuilder, (const char *kernel, TF_KernelBuilder *, TF_Status *))                       \
  X(void, TF_OpKernelConstruction_GetAttrSize,                                                                   \
    (TF_OpKernelConstruction *, const char *name, int32_t *list, int32_t *total, TF_Status *))                   \
  X(void, TF_OpKernelConstruction_GetAttrTypeList,                                                               \
    (TF_OpKernelConstruction *, const char *name, int *types, int room, TF_Status *))                            \
  X(void, TF_OpKernelConstruction_GetAttrInt64,                                                                  \
    (TF_OpKernelConstruction *, const char *name, int64_t *value, TF_Status *))                                  \
  X(void, TF_OpKernelConstruction_Failure, (TF_OpKernelConstruction *, TF_Status *))                             \
  X(void, TF_OpKernelContext_Failure, (TF_OpKernelContext *, TF_Status *))                                       \
  X(void, TF_GetInput, (TF_OpKernelContext *, int index, TF_Tensor **, TF_Status *))                             \
  X(TF_Tensor *, TF_AllocateOutput,                                                                              \
    (TF_OpKernelContext *, int index, int dtype, const int64_t *shape, int rank, size_t bytes, TF_Status *))     \
  X(int, TF_NumDims, (const TF_Tensor *))                                                                        \
  X(int64_t, TF_Dim, (const TF_Tensor *, int axis))                                                              \
  X(void *, TF_TensorData, (const TF_Tensor *))                                                                  \
  X(void, TF_DeleteTensor, (TF_Tensor *))

#define DECLARE(result, name, arguments) static result(*name) arguments;
FUNCTIONS(DECLARE)

/* A kernel by its number. Entries are never freed: TensorFlow's references to them may outlive the kernel. */
typedef struct entry {
  struct entry *next;
  int64_t number;
  deep5_kernel *kernel; /* NULL once it is freed */
  char *name;
} entry;
static entry *entries;

static entry *found(int64_t number) {
  entry *at = __atomic_load_n(&entries, __ATOMIC_ACQUIRE);
  while (at && at->number != number) at = at->next;
  return at;
}

/* TensorFlow's dtype numbers, indexed by deep5's, and their sizes in bytes; 0 if TensorFlow has no such dtype. */
static const struct {
  int dtype;
  size_t bytes;
} TYPES[17] = {
    [DEEP5_FLOAT32] = {1, 4}, [DEEP5_UINT8] = {4, 1},    [DEEP5_INT8] = {6, 1},     [DEEP5_UINT16] = {17, 2},
    [DEEP5_INT16] = {5, 2},   [DEEP5_INT32] = {3, 4},    [DEEP5_INT64] = {9, 8},    [DEEP5_BOOL] = {10, 1},
    [DEEP5_FLOAT16] = {19, 2}, [DEEP5_FLOAT64] = {2, 8}, [DEEP5_UINT32] = {22, 4},  [DEEP5_UINT64] = {23, 8},
    [DEEP5_BFLOAT16] = {14, 2},
};

/* The text that Python extracts from TensorFlow's message: it begins with "deep5: " and ends with " [deep5]". */
static void say(TF_Status *status, int code, const char *name, const char *what, const char *why) {
  size_t room = strlen(name) + strlen(what) + strlen(why) + 24;
  char *text = malloc(room);
  if (text) snprintf(text, room, "deep5: %s%s%s [deep5]", name, what, why);
  TF_SetStatus(status, code, text ? text : "deep5: no memory [deep5]");
  free(text);
}

/* Whether an attribute that lists dtypes equals this list. */
static int agrees(TF_OpKernelConstruction *context, const char *name, int count, const int32_t *dtypes) {
  int types[DEEP5_MAX_TENSORS];
  int32_t listed = -1, total = 0;
  TF_Status *status = TF_NewStatus();
  TF_OpKernelConstruction_GetAttrSize(context, name, &listed, &total, status);
  int same = TF_GetCode(status) == OK && listed == count;
  if (same && count > 0) {
    TF_OpKernelConstruction_GetAttrTypeList(context, name, types, count, status);
    same = TF_GetCode(status) == OK;
    for (int at = 0; same && at < count; ++at) same = types[at] == TYPES[dtypes[at]].dtype;
  }
  TF_DeleteStatus(status);
  return same;
}

static void *create(TF_OpKernelConstruction *context) {
  int64_t number = 0;
  TF_Status *status = TF_NewStatus();
  TF_OpKernelConstruction_GetAttrInt64(context, "kernel", &number, status);
  entry *own = TF_GetCode(status) == OK ? found(number) : NULL;
  deep5_kernel *kernel = own ? __atomic_load_n(&own->kernel, __ATOMIC_ACQUIRE) : NULL;
  if (!kernel) {
    say(status, FAILED_PRECONDITION, own ? own->name : "an operator", " is gone, or was made in another process", "");
  } else if (!agrees(context, "Tin", kernel->inputs, kernel->dtypes) ||
             !agrees(context, "Tout", kernel->outputs, kernel->dtypes + kernel->inputs)) {
    say(status, INVALID_ARGUMENT, own->name, " does not take tensors of these element types", "");
  }
  if (TF_GetCode(status) != OK) TF_OpKernelConstruction_Failure(context, status);
  TF_DeleteStatus(status);
  return own;
}

/* The deep5 view of a tensor. Returns 0, or an error code. */
static int viewed(const TF_Tensor *tensor, int32_t dtype, int64_t *shape, deep5_tensor *view) {
  int rank = TF_NumDims(tensor);
  if (rank > DEEP5_MAX_RANK) return 1;
  for (int axis = 0; axis < rank; ++axis) shape[axis] = TF_Dim(tensor, axis);
  *view = (deep5_tensor){TF_TensorData(tensor), shape, NULL, rank, dtype};
  return 0;
}

static TF_Tensor *allocated(TF_OpKernelContext *context, int index, deep5_tensor *output, TF_Status *status) {
  size_t bytes = TYPES[output->dtype].bytes;
  for (int axis = 0; axis < output->rank; ++axis) {
    if (output->shape[axis] < 0) { /* for which TensorFlow would abort the process */
      TF_SetStatus(status, INVALID_ARGUMENT, "deep5: an operator's specs says an extent below zero [deep5]");
      return NULL;
    }
    bytes *= (size_t)output->shape[axis];
  }
  TF_Tensor *made = TF_AllocateOutput(context, index, TYPES[output->dtype].dtype, output->shape, output->rank, bytes,
                                      status);
  if (TF_GetCode(status) == OK) output->data = TF_TensorData(made);
  return made;
}

static void compute(void *state, TF_OpKernelContext *context) {
  entry *own = state;
  deep5_kernel *kernel = __atomic_load_n(&own->kernel, __ATOMIC_ACQUIRE);
  TF_Status *status = TF_NewStatus();
  if (!kernel) {
    say(status, FAILED_PRECONDITION, own->name, " is gone", "");
    TF_OpKernelContext_Failure(context, status);
    TF_DeleteStatus(status);
    return;
  }
  int count = kernel->inputs + kernel->outputs, held = 0;
  TF_Tensor *tensors[DEEP5_MAX_TENSORS];
  deep5_tensor views[DEEP5_MAX_TENSORS], *outputs = views + kernel->inputs;
  int64_t shapes[DEEP5_MAX_TENSORS][DEEP5_MAX_RANK];
  for (; held < kernel->inputs && TF_GetCode(status) == OK; ++held) {
    tensors[held] = NULL;
    TF_GetInput(context, held, &tensors[held], status);
    if (TF_GetCode(status) == OK && viewed(tensors[held], kernel->dtypes[held], shapes[held], &views[held])) {
      say(status, INVALID_ARGUMENT, own->name, " got an input of more than 16 axes", "");
    }
  }
  if (TF_GetCode(status) == OK) {
    for (int at = kernel->inputs; at < count; ++at) {
      views[at] = (deep5_tensor){NULL, shapes[at], NULL, 0, kernel->dtypes[at]};
    }
    if (kernel->shapes(kernel, views, outputs)) say(status, INVALID_ARGUMENT, own->name, ": ", kernel->error(kernel));
  }
  for (; held < count && TF_GetCode(status) == OK; ++held) {
    tensors[held] = allocated(context, held - kernel->inputs, &views[held], status);
  }
  if (TF_GetCode(status) == OK && kernel->run(kernel, views, outputs, NULL)) {
    say(status, UNKNOWN, own->name, " failed: ", kernel->error(kernel));
  }
  for (int at = 0; at < held; ++at) {
    if (tensors[at]) TF_DeleteTensor(tensors[at]);
  }
  if (TF_GetCode(status) != OK) TF_OpKernelContext_Failure(context, status);
  TF_DeleteStatus(status);
}

static void drop(void *state) { (void)state; }

static void infer(TF_ShapeInferenceContext *context, TF_Status *status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status); /* Python sets the shapes */
}

/* Look TensorFlow's functions up in its loaded library, and register the operation. Returns NULL, or an error text. */
const char *deep5_register(const char *path) {
  static char wrong[256];
  void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (!library) return "its library is not loaded";
#define LOOK(result, name, arguments) \
  if (!(*(void **)&name = dlsym(library, #name))) return "its library has no function " #name;
  FUNCTIONS(LOOK)
  TF_Status *status = TF_NewStatus();
  TF_OpDefinitionBuilder *operation = TF_NewOpDefinitionBuilder("Deep5Operator");
  TF_OpDefinitionBuilderAddAttr(operation, "Tin: list(type) >= 0");
  TF_OpDefinitionBuilderAddAttr(operation, "Tout: list(type) >= 1");
  TF_OpDefinitionBuilderAddAttr(operation, "kernel: int");
  TF_OpDefinitionBuilderAddInput(operation, "inputs: Tin");
  TF_OpDefinitionBuilderAddOutput(operation, "outputs: Tout");
  TF_OpDefinitionBuilderSetShapeInferenceFunction(operation, infer);
  TF_RegisterOpDefinition(operation, status);
  if (TF_GetCode(status) == OK) {
    TF_KernelBuilder *builder = TF_NewKernelBuilder("Deep5Operator", "CPU", create, compute, drop);
    TF_RegisterKernelBuilder("Deep5Operator", builder, status);
  }
  int code = TF_GetCode(status);
  if (code != OK) snprintf(wrong, sizeof wrong, "%s", TF_Message(status));
  TF_DeleteStatus(status);
  return code == OK ? NULL : wrong;
}

/* Register a kernel under a number that was never used before. Returns 0, or 1 if out of memory. */
int deep5_enter(int64_t number, deep5_kernel *kernel, const char *name) {
  entry *made = malloc(sizeof *made);
  char *copy = strdup(name);
  if (!made || !copy) {
    free(made);
    free(copy);
    return 1;
  }
  *made = (entry){__atomic_load_n(&entries, __ATOMIC_ACQUIRE), number, kernel, copy};
  while (!__atomic_compare_exchange_n(&entries, &made->next, made, 0, __ATOMIC_RELEASE, __ATOMIC_ACQUIRE)) {
  }
  return 0;
}

/* Mark a kernel as freed. */
void deep5_forget(int64_t number) {
  entry *own = found(number);
  if (own) __atomic_store_n(&own->kernel, NULL, __ATOMIC_RELEASE);
}
