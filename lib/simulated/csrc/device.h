// What torch asks of a device: which one is current, its streams and events, its generators.
#pragma once

#include "memory.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace simulated {

struct DeviceGuardImpl final : c10::impl::DeviceGuardImplInterface {
  // torch keeps an event as a void pointer, which belongs to it: the shared pointer lets a lane that has still to wait
  // for the event outlive it.
  static EventPointer& of(void* event) {
    return *static_cast<EventPointer*>(event);
  }

  c10::DeviceType type() const override {
    return SIMULATED;
  }

  // ---- the current device of a thread

  Device getDevice() const override {
    return Device(SIMULATED, device_now);
  }

  Device exchangeDevice(Device device) const override {
    Device before = getDevice();
    setDevice(device);
    return before;
  }

  void setDevice(Device device) const override {
    if (device.index() >= 0) {
      check_device(device.index());
      device_now = device.index();
    }
  }

  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0) {
      device_now = device.index();
    }
  }

  DeviceIndex deviceCount() const noexcept override {
    return DeviceIndex(device_count());
  }

  // ---- streams

  Stream getStream(Device device) const override {
    DeviceIndex index = index_of(device);
    check_device(index);
    return Stream(Stream::UNSAFE, Device(SIMULATED, index), stream_now[index]);
  }

  Stream getDefaultStream(Device device) const override {
    return Stream(Stream::DEFAULT, Device(SIMULATED, index_of(device)));
  }

  Stream getNewStream(Device device, int /*priority*/) const override {
    DeviceIndex index = index_of(device);
    check_device(index);
    return Stream(Stream::UNSAFE, Device(SIMULATED, index), next_stream(index));
  }

  Stream getStreamFromGlobalPool(Device device, bool /*high_priority*/) const override {
    return getNewStream(device, 0);
  }

  Stream exchangeStream(Stream stream) const override {
    Stream before = getStream(stream.device());
    stream_now[stream.device_index()] = stream.id();
    return before;
  }

  bool queryStream(const Stream& stream) const override {
    return lane(stream).idle();
  }

  void synchronizeStream(const Stream& stream) const override {
    lane(stream).synchronize();
  }

  void synchronizeDevice(const DeviceIndex device) const override {
    DeviceIndex index = device < 0 ? device_now : device;
    check_device(index);
    synchronize_device(index);
  }

  // ---- events

  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<EventPointer*>(event);
  }

  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new EventPointer(std::make_shared<Event>());
    }
    lane(stream).record(of(*event));
  }

  void block(void* event, const Stream& stream) const override {
    if (event != nullptr && !settings().forgets_waits) {
      lane(stream).follow(of(event));
    }
  }

  bool queryEvent(void* event) const override {
    return event == nullptr || of(event)->has_happened();
  }

  void synchronizeEvent(void* event) const override {
    if (event == nullptr) {
      return;
    }
    refuse_in_a_fork();
    {
      WithoutPython let_others_run;
      of(event)->wait(of(event)->asked());
    }
    int devices = device_count();
    for (int device = 0; device < devices; ++device) {  // an event does not know where it was recorded
      raise_error_of(DeviceIndex(device));
    }
  }

  double elapsedTime(void* first, void* second, const DeviceIndex) const override {
    bool recorded = first != nullptr && second != nullptr;
    TORCH_CHECK(recorded, "elapsed_time: both events must be recorded first");
    bool happened = queryEvent(first) && queryEvent(second);
    TORCH_CHECK(happened, "elapsed_time: both events must have happened; synchronize first");
    return std::chrono::duration<double, std::milli>(of(second)->time() - of(first)->time()).count();
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    device_allocator().recordStream(data, stream);
  }
};

// ---- random numbers: a kernel draws with a seed that its launch has taken from the generator of the device

struct Generator : at::CPUGeneratorImpl {
  explicit Generator(DeviceIndex device) {
    device_ = Device(SIMULATED, device);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }

  // It counts nothing that could be skipped; pickle asks every generator but the CPU's.
  uint64_t get_offset() const override {
    return 0;
  }

  void set_offset(uint64_t offset) override {
    TORCH_CHECK(offset == 0, "a generator of a simulated device has no offset but 0, not ", offset);
  }

 private:
  Generator* clone_impl() const override {
    auto* made = new Generator(device_.index());
    made->set_state(*get_state());
    return made;
  }
};

inline const at::Generator& default_generator(DeviceIndex device) {
  static auto* all = [] {
    auto* made = new std::vector<at::Generator>;
    for (int index = 0; index < MOST_DEVICES; ++index) {
      made->push_back(at::make_generator<Generator>(DeviceIndex(index)));
    }
    return made;
  }();
  DeviceIndex index = device < 0 ? device_now : device;
  check_device(index);
  return (*all)[index];
}

// A generator for one kernel, which may run at any time later.
inline at::Generator drawn_from(const at::Generator& generator) {
  at::Generator same = generator;
  std::lock_guard lock(same.mutex());
  auto* numbers = static_cast<at::CPUGeneratorImpl*>(same.unsafeGetGeneratorImpl());
  return at::make_generator<at::CPUGeneratorImpl>(numbers->random64());
}

struct Hooks final : at::PrivateUse1HooksInterface {
  void init() const override {}

  bool isBuilt() const override {
    return true;
  }

  bool isAvailable() const override {
    return device_count() > 0;
  }

  bool hasPrimaryContext(DeviceIndex) const override {
    return true;
  }

  DeviceIndex deviceCount() const override {
    return DeviceIndex(device_count());
  }

  void setCurrentDevice(DeviceIndex device) const override {
    check_device(device);
    device_now = device;
  }

  DeviceIndex getCurrentDevice() const override {
    return device_now;
  }

  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    DeviceIndex before = device_now;
    setCurrentDevice(device);
    return before;
  }

  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return exchangeDevice(device < 0 ? device_now : device);
  }

  bool isPinnedPtr(const void* address) const override {
    return pinned_allocator().holds(address);
  }

  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned_allocator();
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }

  Device getDeviceFromPtr(void*) const override {
    return Device(SIMULATED, device_now);
  }

  const at::Generator& getDefaultGenerator(DeviceIndex device) const override {
    return default_generator(device);
  }

  at::Generator getNewGenerator(DeviceIndex device) const override {
    DeviceIndex index = device < 0 ? device_now : device;
    check_device(index);
    return at::make_generator<Generator>(index);
  }
};

}  // namespace simulated
