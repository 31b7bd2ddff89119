// Compiled operators as operators of OpenVINO: an extension that Core.add_extension loads.
//
// One class of nodes serves all operators; the address of a node's kernel is an attribute of the node.
// OpenVINO looks up symbols that the flags for operators hide by default.
#pragma GCC visibility push(default)
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <openvino/core/attribute_visitor.hpp>
#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <openvino/frontend/onnx/extension/conversion.hpp>
#include <openvino/op/op.hpp>

#include "deep5/kernel.h"

namespace deep5_openvino {

ov::element::Type element(int32_t code) {
  switch (code) {
    case DEEP5_FLOAT32: return ov::element::f32;
    case DEEP5_UINT8: return ov::element::u8;
    case DEEP5_INT8: return ov::element::i8;
    case DEEP5_INT32: return ov::element::i32;
    case DEEP5_INT64: return ov::element::i64;
    case DEEP5_BOOL: return ov::element::boolean;
    default: OPENVINO_THROW("an operator in C++ with an element type that deep5 does not hand to OpenVINO");
  }
}

// Failures, by the number of the program and the address of the kernel.
using Place = std::pair<int64_t, int64_t>;
std::mutex lock;
std::map<Place, std::string> failures;
std::atomic<int> failed{0};

// The arguments of a kernel call: its tensors and their shapes.
struct Call {
  explicit Call(const deep5_kernel *kernel) : tensors(kernel->inputs + kernel->outputs), shapes(tensors.size()) {
    for (size_t at = 0; at < tensors.size(); ++at) {
      shapes[at].resize(DEEP5_MAX_RANK);
      tensors[at] = deep5_tensor{nullptr, shapes[at].data(), nullptr, 0, kernel->dtypes[at]};
    }
  }
  void extents(size_t at, const ov::Shape &shape) {
    OPENVINO_ASSERT(shape.size() <= DEEP5_MAX_RANK, "an input has more than 16 axes");
    tensors[at].rank = static_cast<int32_t>(shape.size());
    for (size_t axis = 0; axis < shape.size(); ++axis) shapes[at][axis] = static_cast<int64_t>(shape[axis]);
  }
  ov::Shape shape(size_t at) const { return ov::Shape(shapes[at].begin(), shapes[at].begin() + tensors[at].rank); }
  std::vector<deep5_tensor> tensors;
  std::vector<std::vector<int64_t>> shapes;
};

class Compiled : public ov::op::Op {
 public:
  OPENVINO_OP("Compiled", "deep5");
  Compiled() = default;
  Compiled(const ov::OutputVector &inputs, int64_t address, int64_t program, const std::vector<int64_t> &ranks)
      : Op(inputs), address_(address), program_(program), ranks_(ranks) {
    constructor_validate_and_infer_types();
  }

  void validate_and_infer_types() override {
    auto self = kernel();
    NODE_VALIDATION_CHECK(this, get_input_size() == size_t(self->inputs), "it has another number of inputs");
    bool known = true;
    for (int at = 0; at < self->inputs; ++at) known = known && get_input_partial_shape(at).is_static();
    Call call(self);
    if (known) {
      for (int at = 0; at < self->inputs; ++at) call.extents(at, get_input_shape(at));
      shapes(call);
    }
    set_output_size(self->outputs);
    for (int at = 0; at < self->outputs; ++at) {
      auto shape = known ? ov::PartialShape(call.shape(self->inputs + at)) : ov::PartialShape::dynamic(ranks_[at]);
      set_output_type(at, element(self->dtypes[self->inputs + at]), shape);
    }
  }

  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector &inputs) const override {
    return std::make_shared<Compiled>(inputs, address_, program_, ranks_);
  }

  bool visit_attributes(ov::AttributeVisitor &visitor) override {
    visitor.on_attribute("kernel", address_);
    visitor.on_attribute("program", program_);
    visitor.on_attribute("ranks", ranks_);
    return true;
  }

  bool has_evaluate() const override { return true; }

  // Does not throw: after an exception the model must be recompiled.
  bool evaluate(ov::TensorVector &outputs, const ov::TensorVector &inputs) const override {
    try {
      compute(outputs, inputs);
    } catch (const std::exception &error) {
      note(error.what());
      for (auto &output : outputs) std::memset(output.data(), 0, output.get_byte_size());
    }
    return true;
  }

 private:
  // OpenVINO stores 64-bit integers in 32 bits, and booleans in bytes: they are converted here.
  void compute(ov::TensorVector &outputs, const ov::TensorVector &inputs) const {
    auto self = kernel();
    Call call(self);
    std::vector<std::vector<int64_t>> wide(call.tensors.size());
    for (int at = 0; at < self->inputs; ++at) {
      call.extents(at, inputs[at].get_shape());
      call.tensors[at].data = const_cast<void *>(inputs[at].data());
      if (narrow(inputs[at], self->dtypes[at])) {
        auto first = static_cast<const int32_t *>(inputs[at].data());
        wide[at].assign(first, first + inputs[at].get_size());
        call.tensors[at].data = wide[at].data();
      }
    }
    shapes(call);
    for (int at = 0; at < self->outputs; ++at) {
      int place = self->inputs + at;
      outputs[at].set_shape(call.shape(place));
      call.tensors[place].data = outputs[at].data();
      if (narrow(outputs[at], self->dtypes[place])) {
        wide[place].resize(outputs[at].get_size());
        call.tensors[place].data = wide[place].data();
      }
    }
    if (self->run(self, call.tensors.data(), call.tensors.data() + self->inputs, nullptr)) fail(self->error(self));
    for (int at = 0; at < self->outputs; ++at) {
      int place = self->inputs + at;
      if (self->dtypes[place] != DEEP5_INT64) continue;
      auto found = static_cast<const int64_t *>(call.tensors[place].data);
      auto held = wide[place].empty() ? nullptr : static_cast<int32_t *>(outputs[at].data());
      for (size_t i = 0; i < outputs[at].get_size(); ++i) {
        auto small = static_cast<int32_t>(found[i]);
        if (small != found[i]) {
          fail("output " + std::to_string(at) + " holds " + std::to_string(found[i]) +
               "; allowed: 32-bit integers, as OpenVINO stores them");
        }
        if (held) held[i] = small;
      }
    }
  }
  deep5_kernel *kernel() const { return reinterpret_cast<deep5_kernel *>(static_cast<intptr_t>(address_)); }
  void shapes(Call &call) const {
    auto self = kernel();
    if (self->shapes(self, call.tensors.data(), call.tensors.data() + self->inputs)) fail(self->error(self));
  }
  // Keeps a message for deep5_take_failure, unless there is an earlier one.
  void note(const std::string &said) const {
    std::lock_guard<std::mutex> guard(lock);
    failures.emplace(Place(program_, address_), said);
    failed = static_cast<int>(failures.size());
  }
  [[noreturn]] void fail(const std::string &said) const {
    note(said);
    OPENVINO_THROW("an operator in C++ failed: ", said);
  }
  // Whether a tensor has 32 bits where the kernel has 64.
  bool narrow(const ov::Tensor &tensor, int32_t dtype) const {
    auto held = tensor.get_element_type(), meant = element(dtype);
    if (held == ov::element::i32 && meant == ov::element::i64) return true;
    bool same = held == meant || (held == ov::element::u8 && meant == ov::element::boolean);
    if (!same) fail("OpenVINO holds as " + held.to_string() + " what is " + meant.to_string());
    return false;
  }
  int64_t address_ = 0, program_ = 0;
  std::vector<int64_t> ranks_;  // of the outputs: OpenVINO requires them before sizes are known
};

ov::OutputVector convert(const ov::frontend::NodeContext &node) {
  ov::OutputVector inputs;
  for (size_t at = 0; at < node.get_input_size(); ++at) inputs.push_back(node.get_input(static_cast<int>(at)));
  return std::make_shared<Compiled>(inputs, node.get_attribute<int64_t>("kernel"),
                                    node.get_attribute<int64_t>("program"),
                                    node.get_attribute<std::vector<int64_t>>("ranks"))
      ->outputs();
}

}  // namespace deep5_openvino

OPENVINO_CREATE_EXTENSIONS(std::vector<ov::Extension::Ptr>(
    {std::make_shared<ov::OpExtension<deep5_openvino::Compiled>>(),
     std::make_shared<ov::frontend::onnx::ConversionExtension>("Compiled", "deep5.compiled", deep5_openvino::convert)}));

// The failure of a kernel's last call in a program, returned once; NULL if it did not fail.
extern "C" const char *deep5_take_failure(int64_t program, int64_t address) {
  static thread_local std::string said;
  if (!deep5_openvino::failed) return nullptr;
  std::lock_guard<std::mutex> guard(deep5_openvino::lock);
  auto found = deep5_openvino::failures.find({program, address});
  if (found == deep5_openvino::failures.end()) return nullptr;
  said = found->second;
  deep5_openvino::failures.erase(found);
  deep5_openvino::failed = static_cast<int>(deep5_openvino::failures.size());
  return said.c_str();
}
