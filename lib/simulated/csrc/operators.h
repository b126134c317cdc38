// Operators. One fallback serves nearly all of them: shapes from torch's meta device at once, then the CPU's kernel in
// the lane of the current stream. What returns data to the host, or has a shape that depends on data, waits for the lane.
#pragma once

#include "checks.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

namespace simulated {

// Whether a tensor's numbers are to be read conjugated or negated is a bit beside them, which a view must take along.
inline Tensor with_bits_of(Tensor y, const Tensor& x) {
  y._set_conj(x.is_conj());
  y._set_neg(x.is_neg());
  return as_wrapped(y, x);
}

// The same memory as a tensor of the CPU. It holds no storage: as on a GPU, a kernel has an address and nothing else.
inline Tensor host_view_for(const Tensor& x, Lane& user) {
  if (!on_device(x)) {
    return x;
  }
  device_allocator().touch(x.storage().data_ptr(), user);
  void* data = x.numel() > 0 ? x.data_ptr() : nullptr;
  return with_bits_of(at::from_blob(data, x.sizes(), x.strides(), x.options().device(at::kCPU)), x);
}

inline Tensor host_view(const Tensor& x) {
  return on_device(x) ? host_view_for(x, current_lane(x.device().index())) : x;
}

// A tensor of the host that a lane may read or write later: it holds the storage, without the Python object, which
// could only be let go of under the interpreter's lock.
inline Tensor held(const Tensor& x) {
  c10::Storage storage = x.storage();
  auto let_go = [storage](void*) {};
  return with_bits_of(at::from_blob(x.data_ptr(), x.sizes(), x.strides(), let_go, x.options()), x);
}

// ---- what a kernel costs

// Floating point operations: exact for matrix products and convolutions, one an element of the results otherwise.
inline double flops_of(const std::string& name, const Stack& arguments, double elements) {
  auto sizes = [&](size_t k) { return arguments[k].toTensor().sizes(); };
  if (name == "aten::mm") {
    return 2.0 * double(sizes(0)[0]) * double(sizes(0)[1]) * double(sizes(1)[1]);
  }
  if (name == "aten::addmm") {
    return 2.0 * double(sizes(1)[0]) * double(sizes(1)[1]) * double(sizes(2)[1]);
  }
  if (name == "aten::bmm") {
    return 2.0 * double(sizes(0)[0]) * double(sizes(0)[1]) * double(sizes(0)[2]) * double(sizes(1)[2]);
  }
  if (name == "aten::baddbmm") {
    return 2.0 * double(sizes(1)[0]) * double(sizes(1)[1]) * double(sizes(1)[2]) * double(sizes(2)[2]);
  }
  if (name == "aten::convolution") {
    auto weight = sizes(1);
    double a_place = double(arguments[1].toTensor().numel()) / double(std::max<int64_t>(1, weight[0]));
    return 2.0 * elements * a_place;
  }
  if (name == "aten::convolution_backward") {  // one product for the input's gradient, one for the weight's
    auto weight = sizes(2);
    double a_place = double(arguments[2].toTensor().numel()) / double(std::max<int64_t>(1, weight[0]));
    return 4.0 * double(arguments[0].toTensor().numel()) * a_place;
  }
  return elements;
}

struct Size {
  double elements = 0;
  double bytes = 0;

  void add(const IValue& value) {
    each_tensor(value, [this](const Tensor& x) {
      if (x.defined()) {
        elements += double(x.numel());
        bytes += double(x.nbytes());
      }
      return x;
    });
  }
};

// ---- memory and views: done at once, there is nothing to compute

inline Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                    std::optional<Device> device, std::optional<bool> pinned,
                    std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  c10::DeviceGuard guard(c10::device_or_default(device));
  c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, &device_allocator(), keys, c10::dtype_or_default(dtype), format);
}

inline Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                            std::optional<at::Layout>, std::optional<Device> device, std::optional<bool> pinned) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  c10::DeviceGuard guard(c10::device_or_default(device));
  c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, &device_allocator(), keys, c10::dtype_or_default(dtype));
}

inline Tensor as_strided(const Tensor& x, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                         std::optional<c10::SymInt> offset) {
  return at::cpu::as_strided_symint(x, size, stride, offset);
}

inline const Tensor& resize_(const Tensor& x, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  size_t offset = size_t(x.storage_offset());
  size_t bytes = at::detail::computeStorageNbytesContiguous(sizes, x.dtype().itemsize(), offset);
  if (bytes > x.storage().nbytes()) {
    resize_storage(x.storage(), bytes);
  }
  return at::native::resize_(x, sizes, format);  // the storage is large enough: it is left alone
}

inline Tensor view(const Tensor& x, c10::SymIntArrayRef size) {
  return at::native::view(x, C10_AS_INTARRAYREF_SLOW(size));
}

inline Tensor reshape_alias(const Tensor& x, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(x, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

inline Tensor& set_to_tensor(Tensor& x, const Tensor& y) {
  return at::native::set_tensor_(x, y);
}

inline Tensor& set_to_storage(Tensor& x, at::Storage storage) {
  return at::native::set_(x, storage);
}

inline Tensor& set_to_part(Tensor& x, at::Storage storage, int64_t offset, c10::IntArrayRef size,
                           c10::IntArrayRef stride) {
  size_t item = x.dtype().itemsize();
  bool contiguous = stride.size() != size.size();  // no strides were given
  size_t bytes = contiguous ? at::detail::computeStorageNbytesContiguous(size, item, size_t(offset))
                            : at::detail::computeStorageNbytes(size, stride, item, size_t(offset));
  if (bytes > storage.nbytes()) {
    resize_storage(storage, bytes);
  }
  return at::cpu::set_(x, storage, offset, size, stride);
}

inline void record_stream(Tensor& x, Stream stream) {
  device_allocator().recordStream(x.storage().data_ptr(), stream);
}

// ---- copies

enum Direction { FROM_HOST, TO_HOST, TO_PEER };

inline Engine& engine(DeviceIndex device, Direction direction) {
  return lanes().engines[device][direction];
}

// Between devices, as on CUDA: a barrier on both sides, and the copy runs on the source's stream.
inline void copy_to_peer(const Tensor& from, const Tensor& to) {
  Lane& here = current_lane(from.device().index());
  Lane& there = current_lane(to.device().index());
  Seconds modelled = settings().peer.time_of(double(to.nbytes()));
  Engine* way = &engine(from.device().index(), TO_PEER);
  here.follow(there.record());
  here.put("copy", [source = host_view_for(from, here), target = host_view_for(to, here), modelled, way](Lane& lane) {
    lane.spend("copy", "copy to a peer", modelled, [&] { target.copy_(source); }, way);
  });
  there.follow(here.record());
}

inline void copy_on_device(const Tensor& from, const Tensor& to) {
  at::assert_no_internal_overlap(to);
  at::assert_no_partial_overlap(to, from);
  double bytes = double(from.nbytes()) + double(to.nbytes());
  Seconds modelled = settings().kernel_time(double(to.numel()), bytes);
  auto work = [source = host_view(from), target = host_view(to), modelled](Lane& lane) {
    lane.spend("compute", "copy_", modelled, [&] { target.copy_(source); });
  };
  current_lane(to.device().index()).put("copy_", work);
}

// `non_blocking` as CUDA has it: to the device it returns at once, from pinned memory without any work of the host,
// from pageable memory after the host has staged the data; to the host it returns at once only into pinned memory.
inline void copy_across(const Tensor& from, const Tensor& to, bool non_blocking) {
  bool in = on_device(to);
  const Tensor& host = in ? from : to;
  DeviceIndex device = (in ? to : from).device().index();
  bool pinned = pinned_allocator().holds(host.data_ptr());
  bool staged = in && non_blocking && !pinned;
  Tensor source = !in ? host_view(from) : staged ? from.clone() : held(from);
  Tensor target = in ? host_view(to) : held(to);
  Seconds modelled = settings().host.time_of(double(to.nbytes()));
  Engine* way = &engine(device, in ? FROM_HOST : TO_HOST);
  const char* label = in ? "copy from host" : "copy to host";
  Lane& lane = current_lane(device);
  lane.put(label, [source, target, modelled, way, label](Lane& lane) {
    lane.spend("copy", label, modelled, [&] { target.copy_(source); }, way);
  });
  bool returns_at_once = non_blocking && (in || pinned);
  if (!returns_at_once) {
    lane.synchronize();
  }
}

inline Tensor copy_from(const Tensor& source, const Tensor& to, bool non_blocking) {
  Tensor from = source.expand(to.sizes());  // which refuses what does not fit, at once
  if (to.numel() == 0) {
    return to;
  }
  if (on_device(from) != on_device(to)) {
    copy_across(from, to, non_blocking);
  } else if (from.device() != to.device()) {
    copy_to_peer(from, to);
  } else {
    copy_on_device(from, to);
  }
  return to;
}

// For an out= argument whose size depends on data: the host has computed it.
inline Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

// ---- all other operators

// A call of an operator: taken apart, put in a lane, its results given back before they are computed.
class Call {
 public:
  Call(const c10::OperatorHandle& operation, const Stack& stack)
      : operation_(operation), name_(operation.operator_name().name) {
    size_t count = operation.schema().arguments().size();
    arguments_.assign(stack.end() - int64_t(count), stack.end());
    rename_convolution();
    find_device();
  }

  DeviceIndex device() const {
    return device_.index();
  }

  // Run it; returns its results. The results' memory is that of `device`, where a guard must stand.
  Stack run() {
    check_arguments(operation_, arguments_, device_);
    if (returns_only_new_tensors() && !has_other_shapes_on_the_cpu()) {
      shapes_ = shape_cache().of(operation_, arguments_);
    }
    if (!shapes_) {
      return run_now();
    }
    resize_outputs();
    return run_later();
  }

 private:
  // For a device of its own torch calls convolutions by another name, whose CPU kernel is missing.
  void rename_convolution() {
    auto& all = c10::Dispatcher::singleton();
    if (name_ == "aten::convolution_overrideable") {
      operation_ = all.findSchemaOrThrow("aten::convolution", "");
    } else if (name_ == "aten::convolution_backward_overrideable") {
      operation_ = all.findSchemaOrThrow("aten::convolution_backward", "");
      Tensor weight = arguments_[2].toTensor();
      bool transposed = arguments_[6].toBool();
      int64_t groups = arguments_[8].toInt();
      int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
      arguments_.insert(arguments_.begin() + 3, IValue(std::vector<int64_t>{channels}));  // the sizes of the bias
    }
    name_ = operation_.operator_name().name;
  }

  void find_device() {
    for (const IValue& value : arguments_) {
      each_tensor(value, [this](const Tensor& x) {
        if (on_device(x) && device_.index() < 0) {
          device_ = x.device();
        }
        return x;
      });
      if (value.isDevice() && value.toDevice().type() == SIMULATED) {
        device_ = value.toDevice();
      }
    }
    if (device_.index() < 0) {
      device_ = Device(SIMULATED, device_now);
    }
  }

  const c10::FunctionSchema& schema() const {
    return operation_.schema();
  }

  std::string label() const {
    return name_.substr(name_.find("::") + 2);
  }

  bool returns_only_new_tensors() const {
    for (const auto& result : schema().returns()) {
      bool tensor = result.type()->kind() == c10::TypeKind::TensorType;
      bool tensors = result.type()->isSubtypeOf(*c10::ListType::ofTensors());
      bool view = result.alias_info() != nullptr && !result.alias_info()->isWrite();
      if (!(tensor || tensors) || view) {
        return false;
      }
    }
    return true;
  }

  // The meta device answers for CUDA's kernels. The CPU's give these back other tables, which their backward wants.
  bool has_other_shapes_on_the_cpu() const {
    return name_ == "aten::_embedding_bag" || name_ == "aten::_embedding_bag_forward_only";
  }

  // An out= argument of another size gets the right one, as everywhere in torch.
  void resize_outputs() {
    for (size_t k = 0; k < arguments_.size(); ++k) {
      if (!arguments_[k].isTensor() || !on_device(arguments_[k].toTensor()) || !shapes_->arguments[k].isTensor()) {
        continue;
      }
      Tensor x = arguments_[k].toTensor();
      auto inferred = shapes_->arguments[k].toTensor().sizes();
      if (x.sizes() != inferred) {
        x.resize_(inferred);
      }
    }
  }

  Stack run_now() {
    current_lane(device()).synchronize();
    Stack stack = arguments_;
    for (size_t k = 0; k < stack.size(); ++k) {
      if (takes_generator(schema().arguments()[k])) {
        stack[k] = generator_for_a_kernel(stack[k]);
      }
    }
    at::native::cpu_fallback(operation_, &stack);
    return stack;
  }

  Stack run_later() {
    Stack results = make_results();
    Stack inputs = make_inputs();
    Size size;
    for (const IValue& value : arguments_) {
      size.add(value);
    }
    Size made;
    for (const IValue& value : results) {
      made.add(value);
    }
    Seconds modelled = settings().kernel_time(flops_of(name_, arguments_, made.elements), size.bytes + made.bytes);
    auto kernel = [operation = operation_, inputs, targets = targets_, outputs = outputs_]() mutable {
      operation.callBoxed(&inputs);  // which leaves the results in `inputs`
      for (auto& [target, result] : outputs) {
        target.copy_(result);
      }
      for (size_t k = 0; k < targets.size(); ++k) {
        write(targets[k], inputs[k]);
      }
    };
    current_lane(device()).put(label(), [label = label(), modelled, kernel](Lane& lane) mutable {
      lane.spend("compute", label, modelled, kernel);
    });
    return results;
  }

  static void write(const IValue& target, const IValue& result) {
    if (target.isTensor() && target.toTensor().defined()) {
      // Some of the CPU's kernels leave out what nobody will read (batch norm in eval mode: the batch's statistics).
      bool left_out = result.toTensor().numel() == 0;
      if (!left_out) {
        target.toTensor().copy_(result.toTensor());
      }
    } else if (target.isTensorList()) {
      std::vector<Tensor> targets = target.toTensorVector();
      std::vector<Tensor> results = result.toTensorVector();
      for (size_t k = 0; k < targets.size(); ++k) {
        targets[k].copy_(results[k]);
      }
    }
  }

  // What the caller gets: an argument that is written to, or new memory, which the kernel fills later.
  Stack make_results() {
    Stack results;
    for (size_t k = 0; k < schema().returns().size(); ++k) {
      const auto* alias = schema().returns()[k].alias_info();
      if (alias != nullptr) {
        results.push_back(argument_written_as(*alias));
        targets_.emplace_back();
        continue;
      }
      results.push_back(each_tensor(shapes_->results[k], [this](const Tensor& x) {
        return x.defined() ? at::empty_strided(x.sizes(), x.strides(), x.options().device(device_)) : x;
      }));
      targets_.push_back(each_tensor(results.back(), host_view));
    }
    return results;
  }

  IValue argument_written_as(const c10::AliasInfo& alias) const {
    for (size_t k = 0; k < arguments_.size(); ++k) {
      const auto* its = schema().arguments()[k].alias_info();
      if (its != nullptr && its->isWrite() && its->beforeSets() == alias.beforeSets()) {
        return arguments_[k];
      }
    }
    TORCH_INTERNAL_ASSERT(false, name_, " returns an argument that it does not have");
  }

  Stack make_inputs() {
    Stack inputs;
    for (size_t k = 0; k < arguments_.size(); ++k) {
      const auto& argument = schema().arguments()[k];
      const IValue& value = arguments_[k];
      if (argument.is_out() && value.isTensor()) {
        // A CPU kernel may resize what it writes to, which a view of foreign memory can't be.
        Tensor target = host_view(value.toTensor());
        Tensor result = at::empty_strided(target.sizes(), target.strides(), target.options());
        outputs_.emplace_back(target, result);
        inputs.push_back(result);
      } else if (takes_generator(argument)) {
        inputs.push_back(generator_for_a_kernel(value));
      } else {
        inputs.push_back(on(at::kCPU, each_tensor(value, [](const Tensor& x) {
          bool of_the_host = x.defined() && !on_device(x);
          return of_the_host ? as_wrapped(x.clone(), x) : host_view(x);  // the caller may change its own at once
        })));
      }
    }
    return inputs;
  }

  at::Generator generator_for_a_kernel(const IValue& given) const {
    return drawn_from(given.isGenerator() ? given.toGenerator() : default_generator(device()));
  }

  static bool takes_generator(const c10::Argument& argument) {
    const auto& type = argument.type();
    if (type->kind() != c10::TypeKind::OptionalType) {
      return type->kind() == c10::TypeKind::GeneratorType;
    }
    return type->expectRef<c10::OptionalType>().getElementType()->kind() == c10::TypeKind::GeneratorType;
  }

  c10::OperatorHandle operation_;
  std::string name_;
  Device device_{SIMULATED, -1};
  Stack arguments_;
  std::shared_ptr<const Shapes> shapes_;
  std::vector<IValue> targets_;
  std::vector<std::pair<Tensor, Tensor>> outputs_;  // what out= names, and where the kernel writes it first
};

inline void fallback(const c10::OperatorHandle& operation, Stack* stack) {
  Call call(operation, *stack);
  c10::DeviceGuard guard(Device(SIMULATED, call.device()));
  Stack results = call.run();
  torch::jit::drop(*stack, operation.schema().arguments().size());
  for (IValue& result : results) {
    stack->push_back(std::move(result));
  }
}

// torch has no kernel of dropout that every device could use; this one draws from the device's generator.
inline std::tuple<Tensor, Tensor> native_dropout(const Tensor& x, double p, std::optional<bool> train) {
  if (train.has_value() && !*train) {
    return {x.clone(), at::ones_like(x, at::kBool)};
  }
  Tensor mask = at::empty_like(x, x.options().dtype(at::kBool)).bernoulli_(1 - p);
  double scale = p < 1 ? 1 / (1 - p) : 0.0;
  return {x * mask * scale, mask};
}

}  // namespace simulated
