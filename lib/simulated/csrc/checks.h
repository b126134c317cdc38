// What the arguments of a call must be, told at once and in CUDA's words: of one device, with a generator of its kind,
// and what is written to in no part that is read. The CPU's kernels can't tell: they see addresses.
#pragma once

#include "shapes.h"

#include <ATen/MemoryOverlap.h>

#include <set>

namespace simulated {

// CUDA's kernels take indices and lengths from the host, too.
inline bool reads_tables_of_the_host(const std::string& name) {
  static const auto* names = new std::set<std::string>{
      "aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::_ctc_loss", "aten::_ctc_loss_backward",
  };
  return names->count(name) > 0;
}

inline bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

inline void check_device_of(const Tensor& x, Device device, const c10::Argument& argument, const std::string& name) {
  bool number_of_the_host = x.is_cpu() && x.dim() == 0 && !is_written(argument);
  bool table_of_the_host = x.is_cpu() && !is_written(argument) && reads_tables_of_the_host(name);
  TORCH_CHECK(
      x.device() == device || number_of_the_host || table_of_the_host,
      "Expected all tensors to be on the same device, but found at least two devices, ", device, " and ", x.device(),
      "! (argument ", argument.name(), " of ", name.substr(name.find("::") + 2), ")");
}

inline void check_generator(const at::Generator& generator) {
  TORCH_CHECK(
      generator.device().type() == SIMULATED, "Expected a 'simgpu' device type for generator but found '",
      generator.device().type(), "'");
}

inline void check_overlap(const Tensor& written, const Stack& arguments) {
  for (const IValue& value : arguments) {
    if (value.isTensor() && on_device(value.toTensor())) {
      at::assert_no_partial_overlap(written, value.toTensor());
    }
  }
}

inline void check_arguments(const c10::OperatorHandle& operation, const Stack& arguments, Device device) {
  const std::string& name = operation.operator_name().name;
  for (size_t k = 0; k < arguments.size(); ++k) {
    const auto& argument = operation.schema().arguments()[k];
    each_tensor(arguments[k], [&](const Tensor& x) {
      if (x.defined()) {
        check_device_of(x, device, argument, name);
      }
      return x;
    });
    if (arguments[k].isGenerator()) {
      check_generator(arguments[k].toGenerator());
    }
    if (is_written(argument) && arguments[k].isTensor() && arguments[k].toTensor().defined()) {
      check_overlap(arguments[k].toTensor(), arguments);
    }
  }
}

}  // namespace simulated
