/* Compiled operators in XLA-compiled functions: one XLA foreign function interface handler for all operators.
 *
 * An attribute of the call is a random number under which Python has registered the kernel in the table of this file.
 * XLA looks it up once, when it creates an executable; the executable then holds the kernel, and releases it when XLA
 * destroys the executable. So a number is invalid in another process, and a program never contains an address. Memory
 * is XLA's; nothing is copied, and no Python code is called.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deep5/kernel.h"
#include "xla/ffi/api/c_api.h"

#define NAME_BYTES 128
#define TEXT_BYTES 4096

typedef struct Entry {
  int64_t number;
  deep5_kernel *kernel;
  int64_t holders; /* number of executables */
  char name[NAME_BYTES];
  struct Entry *next;
} Entry;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Entry *entries;

/* IDs assigned by XLA. */
XLA_FFI_TypeId deep5_state_type;

static void let_go(void *state) {
  pthread_mutex_lock(&lock);
  ((Entry *)state)->holders--;
  pthread_mutex_unlock(&lock);
}

XLA_FFI_TypeInfo deep5_state_info = {XLA_FFI_TypeInfo_STRUCT_SIZE, NULL, let_go};

/* Register a kernel under an unused number. Returns 0, or 1 if out of memory. */
int deep5_enter(int64_t number, deep5_kernel *kernel, const char *name) {
  Entry *made = calloc(1, sizeof(Entry));
  if (!made) return 1;
  made->number = number;
  made->kernel = kernel;
  snprintf(made->name, NAME_BYTES, "%s", name);
  pthread_mutex_lock(&lock);
  made->next = entries;
  entries = made;
  pthread_mutex_unlock(&lock);
  return 0;
}

/* Remove a kernel, unless an executable holds it. Returns 1 if it is not in the table any more. */
int deep5_leave(int64_t number) {
  int out = 1;
  pthread_mutex_lock(&lock);
  for (Entry **at = &entries; *at; at = &(*at)->next) {
    if ((*at)->number != number) continue;
    Entry *found = *at;
    out = found->holders == 0;
    if (out) {
      *at = found->next;
      free(found);
    }
    break;
  }
  pthread_mutex_unlock(&lock);
  return out;
}

static XLA_FFI_Error *fail(XLA_FFI_CallFrame *frame, XLA_FFI_Error_Code code, const char *name, const char *what) {
  char text[TEXT_BYTES];
  /* The brackets mark deep5's text within XLA's error message. */
  snprintf(text, sizeof text, "[deep5: %s%s]", name, what);
  text[sizeof text - 2] = ']';
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, NULL, text, code};
  return frame->api->XLA_FFI_Error_Create(&args);
}

/* Answers XLA's metadata query with the interface version and the state's type. Returns 1 for such a query. */
static int asked(XLA_FFI_CallFrame *frame, int stateful) {
  /* jaxlib 0.11 renamed the type of the start, which is the first member of every extension. */
  XLA_FFI_Metadata_Extension *extension = (XLA_FFI_Metadata_Extension *)frame->extension_start;
  if (!extension || extension->extension_base.type != XLA_FFI_Extension_Metadata) return 0;
  XLA_FFI_Metadata *metadata = extension->metadata;
  metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  metadata->api_version.minor_version = XLA_FFI_API_MINOR;
  metadata->traits = 0;
  if (stateful) metadata->state_type_id = deep5_state_type;
  return 1;
}

/* Called once per executable. */
XLA_FFI_Error *deep5_instantiate(XLA_FFI_CallFrame *frame) {
  if (asked(frame, 1)) return NULL;
  int64_t number = 0;
  for (int64_t i = 0; i < frame->attrs.size; ++i) {
    XLA_FFI_ByteSpan *name = frame->attrs.names[i];
    if (frame->attrs.types[i] != XLA_FFI_AttrType_SCALAR || name->len != 6 || memcmp(name->ptr, "kernel", 6)) continue;
    XLA_FFI_Scalar *scalar = frame->attrs.attrs[i];
    if (scalar->dtype == XLA_FFI_DataType_S64) number = *(int64_t *)scalar->value;
  }
  pthread_mutex_lock(&lock);
  Entry *found = entries;
  while (found && found->number != number) found = found->next;
  if (found) found->holders++;
  pthread_mutex_unlock(&lock);
  if (!found) {
    return fail(frame, XLA_FFI_Error_Code_FAILED_PRECONDITION, "a compiled operator",
                " that this function calls is gone: it was lowered in another process, or the operator was let go "
                "before it was compiled; remedy: trace it again");
  }
  XLA_FFI_State_Set_Args args = {
      XLA_FFI_State_Set_Args_STRUCT_SIZE, NULL, frame->ctx, XLA_FFI_ExecutionStage_INSTANTIATE, &deep5_state_type, found};
  XLA_FFI_Error *error = frame->api->XLA_FFI_State_Set(&args);
  if (error) let_go(found);
  return error;
}

static int32_t code_of(XLA_FFI_DataType dtype) {
  switch (dtype) {
    case XLA_FFI_DataType_PRED: return DEEP5_BOOL;
    case XLA_FFI_DataType_S8: return DEEP5_INT8;
    case XLA_FFI_DataType_S16: return DEEP5_INT16;
    case XLA_FFI_DataType_S32: return DEEP5_INT32;
    case XLA_FFI_DataType_S64: return DEEP5_INT64;
    case XLA_FFI_DataType_U8: return DEEP5_UINT8;
    case XLA_FFI_DataType_U16: return DEEP5_UINT16;
    case XLA_FFI_DataType_U32: return DEEP5_UINT32;
    case XLA_FFI_DataType_U64: return DEEP5_UINT64;
    case XLA_FFI_DataType_F16: return DEEP5_FLOAT16;
    case XLA_FFI_DataType_F32: return DEEP5_FLOAT32;
    case XLA_FFI_DataType_F64: return DEEP5_FLOAT64;
    case XLA_FFI_DataType_BF16: return DEEP5_BFLOAT16;
    default: return 0;
  }
}

/* XLA's buffers are C-contiguous: the call requests this layout. */
static int fill(deep5_tensor *tensors, void **buffers, int64_t count, const int32_t *dtypes) {
  for (int64_t i = 0; i < count; ++i) {
    XLA_FFI_Buffer *buffer = buffers[i];
    tensors[i].data = buffer->data;
    tensors[i].shape = buffer->dims;
    tensors[i].strides = NULL;
    tensors[i].rank = (int32_t)buffer->rank;
    tensors[i].dtype = code_of(buffer->dtype);
    if (tensors[i].dtype != dtypes[i]) return 0;
  }
  return 1;
}

/* Called once per call, in any of XLA's threads. */
XLA_FFI_Error *deep5_execute(XLA_FFI_CallFrame *frame) {
  if (asked(frame, 0)) return NULL;
  XLA_FFI_State_Get_Args args = {
      XLA_FFI_State_Get_Args_STRUCT_SIZE, NULL, frame->ctx, XLA_FFI_ExecutionStage_INSTANTIATE, &deep5_state_type, NULL};
  XLA_FFI_Error *error = frame->api->XLA_FFI_State_Get(&args);
  if (error) return error;
  Entry *entry = args.state;
  deep5_kernel *kernel = entry->kernel;
  deep5_tensor inputs[DEEP5_MAX_TENSORS], outputs[DEEP5_MAX_TENSORS];
  if (frame->args.size != kernel->inputs || frame->rets.size != kernel->outputs ||
      !fill(inputs, frame->args.args, frame->args.size, kernel->dtypes) ||
      !fill(outputs, frame->rets.rets, frame->rets.size, kernel->dtypes + kernel->inputs)) {
    return fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT, entry->name, ": got other tensors than it was made for");
  }
  if (kernel->run(kernel, inputs, outputs, NULL)) {
    char text[TEXT_BYTES];
    snprintf(text, sizeof text, " failed: %s", kernel->error(kernel));
    return fail(frame, XLA_FFI_Error_Code_UNKNOWN, entry->name, text);
  }
  return NULL;
}

/* Handler on GPUs, which rejects the call. */
XLA_FFI_Error *deep5_refuse(XLA_FFI_CallFrame *frame) {
  if (asked(frame, 0)) return NULL;
  return fail(frame, XLA_FFI_Error_Code_UNIMPLEMENTED, "a compiled operator",
              " runs on the host alone: deep5 hands CUDA kernels to no JAX; remedy: arrays on the host, or "
              "d5.framework('pytorch')");
}
