// A simulated accelerator for torch: registration, and what its Python side calls.
//
//   settings.h   what `start` was told; a fork, the end of the process
//   records.h    what lanes write down: spans, errors
//   lanes.h      streams are threads, each on a clock of its own; events
//   memory.h     the caching allocator, pinned memory
//   device.h     what torch asks of a device; generators
//   checks.h     what a call's arguments must be
//   shapes.h     what results look like, before they are computed
//   recurrent.h  the cells of LSTM and GRU
//   operators.h  views, copies, and the fallback that serves all other operators
#include "operators.h"
#include "recurrent.h"

#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace {

using namespace simulated;

C10_REGISTER_GUARD_IMPL(PrivateUse1, DeviceGuardImpl);

[[maybe_unused]] const bool registered = [] {
  c10::SetAllocator(SIMULATED, &device_allocator(), 1);
  at::setHostAllocator(at::kPrivateUse1, &pinned_allocator(), 1);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  pthread_atfork(nullptr, nullptr, [] { forked = true; });
  return true;
}();

// ---- operators

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", simulated::empty);
  library.impl("empty_strided", simulated::empty_strided);
  library.impl("as_strided", simulated::as_strided);
  library.impl("resize_", simulated::resize_);
  library.impl("view", simulated::view);
  library.impl("_reshape_alias", simulated::reshape_alias);
  library.impl("unfold", at::native::unfold);
  library.impl("view_as_real", at::native::view_as_real);
  library.impl("view_as_complex", at::native::view_as_complex);
  library.impl("set_.source_Tensor", simulated::set_to_tensor);
  library.impl("set_.source_Storage", simulated::set_to_storage);
  library.impl("set_.source_Storage_storage_offset", simulated::set_to_part);
  library.impl("_copy_from", simulated::copy_from);
  library.impl("_copy_from_and_resize", simulated::copy_from_and_resize);
  library.impl("record_stream", simulated::record_stream);
  library.impl("native_dropout", simulated::native_dropout);
  for (const char* name : {"convolution_overrideable", "convolution_backward_overrideable"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_thnn_fused_lstm_cell", recurrent::lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", recurrent::lstm_cell_backward);
  library.impl("_thnn_fused_gru_cell", recurrent::gru_cell);
  library.impl("_thnn_fused_gru_cell_backward", recurrent::gru_cell_backward);
}

// torch knows the shapes of LSTM's alone.
TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("_thnn_fused_gru_cell", recurrent::gru_cell);
  library.impl("_thnn_fused_gru_cell_backward", recurrent::gru_cell_backward);
}

// A copy reads conjugated and negated numbers as they are meant. Elsewhere torch makes a copy of them first: without end.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

// What autocast does on CUDA with the operators that models use most.
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  using namespace at;
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(baddbmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv1d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(scaled_dot_product_attention, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mse_loss, fp32)
  KERNEL_PRIVATEUSEONE(nll_loss, fp32)
  KERNEL_PRIVATEUSEONE(layer_norm, fp32)
  KERNEL_PRIVATEUSEONE(softmax, int, fp32)
  KERNEL_PRIVATEUSEONE(log_softmax, int, fp32)
}

// ---- what Python asks

double seconds_of(Time time) {
  return Seconds(time.time_since_epoch()).count();
}

void configure(int64_t devices, int64_t memory, at::ArrayRef<double> kernel, at::ArrayRef<double> host,
               at::ArrayRef<double> peer, bool forgets_waits, bool forgets_record_stream) {
  TORCH_CHECK(kernel.size() == 4 && host.size() == 2 && peer.size() == 2, "configure: wrong number of costs");
  Settings wanted;
  wanted.devices = int(devices);
  wanted.memory = memory;
  wanted.kernel_seconds = kernel[0];
  wanted.flops_per_second = kernel[1];
  wanted.bytes_per_second = kernel[2];
  wanted.launch = kernel[3];
  wanted.host = {host[0], host[1]};
  wanted.peer = {peer[0], peer[1]};
  wanted.forgets_waits = forgets_waits;
  wanted.forgets_record_stream = forgets_record_stream;
  std::lock_guard lock(shared().mutex);
  shared().settings = wanted;
}

// Keep the current stream busy, as torch.cuda._sleep does.
void sleep_on_stream(double seconds) {
  current_lane(device_now).put("sleep", [seconds](Lane& lane) {
    lane.spend("compute", "sleep", Seconds(seconds), [] {});
  });
}

void start_profile() {
  std::lock_guard lock(profile().mutex);
  profile().on = true;
  profile().spans.clear();
}

// End the profile: a line a span, device, stream, kind and label with tabs between them; and start and end of each.
std::tuple<std::vector<std::string>, std::vector<double>> end_profile() {
  std::lock_guard lock(profile().mutex);
  profile().on = false;
  std::vector<std::string> names;
  std::vector<double> times;
  for (const Span& span : profile().spans) {
    names.push_back(c10::str(int(span.device), "\t", span.stream, "\t", span.kind, "\t", span.label));
    times.push_back(seconds_of(span.start));
    times.push_back(seconds_of(span.end));
  }
  profile().spans.clear();
  return {names, times};
}

// How many tasks there were, for how many the CPU took longer than modelled, and the worst delay in seconds.
std::tuple<int64_t, int64_t, double> counters() {
  std::lock_guard lock(profile().mutex);
  return {profile().tasks, profile().overruns, profile().latest.count()};
}

void reset_counters() {
  std::lock_guard lock(profile().mutex);
  profile().tasks = 0;
  profile().overruns = 0;
  profile().latest = Seconds(0);
}

// Let all lanes finish, without waiting for modelled time: the process ends.
void end() {
  if (forked) {
    return;
  }
  {
    std::lock_guard lock(ending().mutex);
    ending().now = true;
  }
  ending().changed.notify_all();
  while (!all_idle()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TORCH_LIBRARY(simgpu, library) {
  library.def(
      "configure(int devices, int memory, float[] kernel, float[] host, float[] peer, bool forgets_waits, "
      "bool forgets_record_stream) -> ()",
      configure);
  library.def("sleep(float seconds) -> ()", &sleep_on_stream);
  library.def("idle() -> bool", all_idle);
  library.def("forked() -> bool", [] { return forked.load(); });
  library.def("now() -> float", [] { return seconds_of(Clock::now()); });
  library.def("default_generator(int device) -> Generator?", [](int64_t device) {
    return default_generator(DeviceIndex(device));
  });
  library.def("start_profile() -> ()", start_profile);
  library.def("end_profile() -> (str[], float[])", end_profile);
  library.def("counters() -> (int, int, float)", counters);
  library.def("reset_counters() -> ()", reset_counters);
  library.def("end() -> ()", end);
}

}  // namespace
