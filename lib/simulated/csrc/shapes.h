// What an operator's results look like, asked of torch's meta device. Its kernels are mostly Python, and ten times as
// slow as a launch may be: so an answer is kept, under all that it can depend on.
#pragma once

#include "device.h"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <unordered_map>

namespace simulated {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

inline bool on_device(const Tensor& x) {
  return x.defined() && x.is_privateuseone();
}

// What torch does with a Python number (it does not decide the dtype) must survive each change of tensor.
inline Tensor as_wrapped(Tensor y, const Tensor& x) {
  if (x.defined() && x.unsafeGetTensorImpl()->is_wrapped_number()) {
    y.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return y;
}

template <typename Change>
IValue each_tensor(const IValue& value, Change change) {
  if (value.isTensor()) {
    return change(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& x : value.toTensorVector()) {
      list.push_back(change(x));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor>& x : value.toOptionalTensorVector()) {
      list.push_back(x ? std::optional<Tensor>(change(*x)) : x);
    }
    return list;
  }
  return value;
}

// An operator that makes a tensor of nothing names the device: another one must stand there where it is asked elsewhere.
inline IValue on(c10::DeviceType type, const IValue& value) {
  return value.isDevice() && value.toDevice().type() == SIMULATED ? IValue(Device(type)) : value;
}

// The arguments and the results of a call, without data. An out= argument has the right size afterwards.
struct Shapes {
  Stack arguments;
  Stack results;
};

class ShapeCache {
 public:
  // Say what the results look like; nothing, if that depends on data, or if the arguments are wrong.
  std::shared_ptr<const Shapes> of(const c10::OperatorHandle& operation, const Stack& arguments) {
    std::string key = c10::str(operation.operator_name(), ";", at::get_default_dtype_as_scalartype(), ";");
    bool known = true;
    for (const IValue& value : arguments) {
      known = known && describe(value, key);
    }
    if (!known) {
      return infer(operation, arguments);
    }
    {
      std::lock_guard lock(mutex_);
      auto found = kept_.find(key);
      if (found != kept_.end()) {
        return found->second;
      }
    }
    auto shapes = infer(operation, arguments);
    if (shapes) {
      std::lock_guard lock(mutex_);
      if (kept_.size() >= MOST) {
        kept_.clear();
      }
      kept_[key] = shapes;
    }
    return shapes;
  }

 private:
  static constexpr size_t MOST = 10000;

  static Tensor without_data(const Tensor& x) {
    if (!on_device(x)) {
      return x;
    }
    return as_wrapped(at::empty_strided(x.sizes(), x.strides(), x.options().device(at::kMeta)), x);
  }

  static std::shared_ptr<const Shapes> infer(const c10::OperatorHandle& operation, const Stack& arguments) {
    auto shapes = std::make_shared<Shapes>();
    for (const IValue& value : arguments) {
      shapes->arguments.push_back(value.isGenerator() ? IValue() : on(at::kMeta, each_tensor(value, without_data)));
    }
    shapes->results = shapes->arguments;
    try {
      operation.callBoxed(&shapes->results);
    } catch (const std::exception&) {  // for wrong arguments, too: the CPU's kernel says so, at once
      return nullptr;
    }
    return shapes;
  }

  // Write down all of a value that shapes can depend on; false for a kind of value that is not known here.
  static bool describe(const IValue& value, std::string& key) {
    if (value.isNone() || value.isGenerator()) {
      key += "-;";
    } else if (value.isTensor()) {
      Tensor x = value.toTensor();
      describe(x, key);
      // A number that travels as a tensor of the host does no harm; a mask of the host would: its data count.
      return !x.defined() || on_device(x) || x.dim() == 0;
    } else if (value.isTensorList()) {
      key += '[';
      for (const Tensor& x : value.toTensorVector()) {
        if (!describe(IValue(x), key)) {
          return false;
        }
      }
      key += ']';
    } else if (value.isInt() || value.isDouble() || value.isBool() || value.isIntList() || value.isDoubleList() ||
               value.isBoolList() || value.isString() || value.isDevice()) {
      key += c10::str(value.tagKind(), value, ";");
    } else {
      return false;
    }
    return true;
  }

  static void describe(const Tensor& x, std::string& key) {
    if (!x.defined()) {
      key += "undefined;";
      return;
    }
    bool wrapped = x.unsafeGetTensorImpl()->is_wrapped_number();
    key += c10::str(x.device().type(), x.scalar_type(), x.sizes(), x.strides(), wrapped ? "w;" : ";");
  }

  std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const Shapes>> kept_;
};

inline ShapeCache& shape_cache() {
  static auto* it = new ShapeCache;
  return *it;
}

}  // namespace simulated
