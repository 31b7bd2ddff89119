/* Compiled operators as custom operators of ONNX Runtime.
 *
 * A library that SessionOptions.register_custom_ops_library loads. It does not require ONNX Runtime's header: the used
 * functions are declared here by their index in a table that only grows at its end, and the description of a custom
 * operator is that of API version 16, which every later ONNX Runtime reads.
 *
 * A custom operator is created once for each combination of element types (a signature) and never freed: sessions hold
 * pointers to it. The address of a node's kernel is an attribute of the node.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "deep5/kernel.h"

#define API_VERSION 16
#define DOMAIN "deep5.compiled"
#define FAIL 1 /* ORT_FAIL */

typedef struct OrtStatus OrtStatus;
typedef struct OrtValue OrtValue;
typedef struct OrtKernelInfo OrtKernelInfo;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtCustomOpDomain OrtCustomOpDomain;
typedef struct OrtTensorTypeAndShapeInfo ShapeInfo;

/* The table of functions, by index. */
typedef struct {
  void *functions[102];
} OrtApi;

typedef struct {
  const OrtApi *(*get_api)(uint32_t version);
  const char *(*get_version)(void);
} OrtApiBase;

#define CALL(api, number, result, ...) ((result(*)(__VA_ARGS__))(api)->functions[number])
#define create_status(api) CALL(api, 0, OrtStatus *, int, const char *)
#define create_domain(api) CALL(api, 26, OrtStatus *, const char *, OrtCustomOpDomain **)
#define add_to_domain(api) CALL(api, 27, OrtStatus *, OrtCustomOpDomain *, const void *)
#define add_domain(api) CALL(api, 28, OrtStatus *, OrtSessionOptions *, OrtCustomOpDomain *)
#define data_of(api) CALL(api, 51, OrtStatus *, const OrtValue *, void **)
#define rank_of(api) CALL(api, 61, OrtStatus *, const ShapeInfo *, size_t *)
#define extents_of(api) CALL(api, 62, OrtStatus *, const ShapeInfo *, int64_t *, size_t)
#define info_of(api) CALL(api, 65, OrtStatus *, const OrtValue *, ShapeInfo **)
#define whole_attribute(api) CALL(api, 86, OrtStatus *, const OrtKernelInfo *, const char *, int64_t *)
#define input_of(api) CALL(api, 90, OrtStatus *, OrtKernelContext *, size_t, const OrtValue **)
#define output_of(api) CALL(api, 91, OrtStatus *, OrtKernelContext *, size_t, const int64_t *, size_t, OrtValue **)
#define release_status(api) CALL(api, 93, void, OrtStatus *)
#define release_info(api) CALL(api, 99, void, ShapeInfo *)

/* The description of a custom operator that ONNX Runtime reads. */
typedef struct Custom Custom;
struct Custom {
  uint32_t version;
  void *(*create)(const Custom *, const OrtApi *, const OrtKernelInfo *);
  const char *(*name)(const Custom *);
  const char *(*provider)(const Custom *);
  int (*input_type)(const Custom *, size_t);
  size_t (*inputs)(const Custom *);
  int (*output_type)(const Custom *, size_t);
  size_t (*outputs)(const Custom *);
  void (*compute)(void *, OrtKernelContext *);
  void (*destroy)(void *);
  int (*input_kind)(const Custom *, size_t);
  int (*output_kind)(const Custom *, size_t);
  int (*input_memory)(const Custom *, size_t);
  int (*least_inputs)(const Custom *);
  int (*inputs_alike)(const Custom *);
  int (*least_outputs)(const Custom *);
  int (*outputs_alike)(const Custom *);
  OrtStatus *(*create_2)(const Custom *, const OrtApi *, const OrtKernelInfo *, void **);
  OrtStatus *(*compute_2)(void *, OrtKernelContext *);
};

typedef struct Signature Signature;
struct Signature {
  Custom custom; /* first, so ONNX Runtime's pointer is also ours */
  char *name;
  int32_t inputs, outputs;
  int32_t types[DEEP5_MAX_TENSORS];
  Signature *next;
};

typedef struct {
  const OrtApi *api;
  deep5_kernel *kernel;
} Node;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Signature *signatures;
/* Holds all signatures; a domain that a session may use is not extended. */
static OrtCustomOpDomain *domain;

static const char *name(const Custom *own) { return ((const Signature *)own)->name; }
static const char *host(const Custom *own) { return (void)own, (const char *)0; }
static size_t inputs(const Custom *own) { return ((const Signature *)own)->inputs; }
static size_t outputs(const Custom *own) { return ((const Signature *)own)->outputs; }
static int input_type(const Custom *own, size_t index) { return ((const Signature *)own)->types[index]; }
static int output_type(const Custom *own, size_t index) {
  const Signature *signature = (const Signature *)own;
  return signature->types[signature->inputs + index];
}
static int zero_at(const Custom *own, size_t index) { return (void)own, (void)index, 0; }
static int one(const Custom *own) { return (void)own, 1; }
static int zero(const Custom *own) { return (void)own, 0; }

static OrtStatus *create(const Custom *own, const OrtApi *api, const OrtKernelInfo *info, void **made) {
  int64_t address = 0;
  OrtStatus *status = whole_attribute(api)(info, "kernel", &address);
  if (status) return status;
  deep5_kernel *kernel = (deep5_kernel *)(intptr_t)address;
  const Signature *signature = (const Signature *)own;
  int count = signature->inputs + signature->outputs;
  if (kernel->inputs != signature->inputs || kernel->outputs != signature->outputs ||
      memcmp(kernel->dtypes, signature->types, count * sizeof *signature->types)) {
    return create_status(api)(FAIL, "the kernel has another signature than its node");
  }
  Node *node = malloc(sizeof *node);
  if (!node) return create_status(api)(FAIL, "no memory");
  node->api = api;
  node->kernel = kernel;
  *made = node;
  return 0;
}

static void destroy(void *node) { free(node); }

static OrtStatus *read_input(const OrtApi *api, OrtKernelContext *context, int at, int64_t *shape, deep5_tensor *out) {
  const OrtValue *value = 0;
  ShapeInfo *info = 0;
  size_t rank = 0;
  OrtStatus *status = input_of(api)(context, at, &value);
  if (!status && !value) status = create_status(api)(FAIL, "an input is missing");
  if (!status) status = info_of(api)(value, &info);
  if (!status) status = rank_of(api)(info, &rank);
  if (!status && rank > DEEP5_MAX_RANK) status = create_status(api)(FAIL, "an input has more than 16 axes");
  if (!status && rank) status = extents_of(api)(info, shape, rank);
  if (!status) status = data_of(api)(value, &out->data);
  if (info) release_info(api)(info);
  out->shape = shape;
  out->strides = 0;
  out->rank = (int32_t)rank;
  return status;
}

static OrtStatus *compute(void *made, OrtKernelContext *context) {
  const Node *node = made;
  const OrtApi *api = node->api;
  deep5_kernel *kernel = node->kernel;
  deep5_tensor tensors[DEEP5_MAX_TENSORS];
  int64_t shapes[DEEP5_MAX_TENSORS][DEEP5_MAX_RANK];
  int count = kernel->inputs + kernel->outputs;
  OrtStatus *status = 0;
  for (int at = 0; at < kernel->inputs; ++at) {
    if ((status = read_input(api, context, at, shapes[at], &tensors[at]))) return status;
    tensors[at].dtype = kernel->dtypes[at];
  }
  for (int at = kernel->inputs; at < count; ++at) {
    tensors[at] = (deep5_tensor){0, shapes[at], 0, 0, kernel->dtypes[at]};
  }
  if (kernel->shapes(kernel, tensors, tensors + kernel->inputs)) {
    return create_status(api)(FAIL, kernel->error(kernel));
  }
  for (int at = kernel->inputs; at < count; ++at) {
    OrtValue *value = 0;
    status = output_of(api)(context, at - kernel->inputs, shapes[at], tensors[at].rank, &value);
    if (!status && !value) status = create_status(api)(FAIL, "there is no memory for an output");
    if (!status) status = data_of(api)(value, &tensors[at].data);
    if (status) return status;
  }
  if (kernel->run(kernel, tensors, tensors + kernel->inputs, 0)) {
    return create_status(api)(FAIL, kernel->error(kernel));
  }
  return 0;
}

/* Called by versions below 16; later versions call the others. */
static void *create_plainly(const Custom *own, const OrtApi *api, const OrtKernelInfo *info) {
  void *made = 0;
  OrtStatus *status = create(own, api, info, &made);
  if (status) release_status(api)(status);
  return made;
}
static void compute_plainly(void *made, OrtKernelContext *context) {
  OrtStatus *status = compute(made, context);
  if (status) release_status(((const Node *)made)->api)(status);
}

/* Register a signature for sessions whose options are created from now on; returns 0, or 1 if out of memory. Names are
 * unique by types: a repeated registration has no effect. */
int deep5_signature(const char *called, int32_t given, int32_t made, const int32_t *types) {
  int failed = 1;
  pthread_mutex_lock(&lock);
  for (Signature *known = signatures; known; known = known->next) {
    if (!strcmp(known->name, called)) {
      pthread_mutex_unlock(&lock);
      return 0;
    }
  }
  Signature *own = calloc(1, sizeof *own);
  if (own && (own->name = strdup(called))) {
    own->custom = (Custom){API_VERSION, create_plainly, name, host,    input_type, inputs, output_type, outputs,
                           compute_plainly, destroy, zero_at, zero_at, zero_at,    one,    zero,        one,
                           zero,            create,  compute};
    own->inputs = given;
    own->outputs = made;
    memcpy(own->types, types, (given + made) * sizeof *types);
    own->next = signatures;
    signatures = own;
    domain = 0; /* sessions keep the current one; it is never freed */
    failed = 0;
  } else {
    free(own);
  }
  pthread_mutex_unlock(&lock);
  return failed;
}

/* Called by ONNX Runtime. */
OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base) {
  const OrtApi *api = base->get_api(API_VERSION);
  if (!api) return 0; /* no way to report it: the session will not find the operator */
  OrtStatus *status = 0;
  pthread_mutex_lock(&lock);
  if (!domain) {
    OrtCustomOpDomain *made = 0;
    status = create_domain(api)(DOMAIN, &made);
    for (Signature *own = signatures; own && !status; own = own->next) status = add_to_domain(api)(made, own);
    if (!status) domain = made;
  }
  if (!status) status = add_domain(api)(options, domain);
  pthread_mutex_unlock(&lock);
  return status;
}
