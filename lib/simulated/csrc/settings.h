// What `start` was told, and what holds for the whole process: the clock, a fork, the end.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace simulated {

using c10::Device;
using c10::DeviceIndex;
using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
using Seconds = std::chrono::duration<double>;

constexpr auto SIMULATED = c10::DeviceType::PrivateUse1;
constexpr int MOST_DEVICES = 64;
constexpr int STREAMS = 32;  // a device's, beside the default stream, which is number 0; as CUDA's pool they go round

// ---- what `start` was told. Zero costs nothing: then a thing takes the time that the CPU needs for it.

struct Link {
  double latency = 0;           // seconds
  double bytes_per_second = 0;  // 0: as fast as the CPU

  Seconds time_of(double bytes) const {
    return Seconds(latency + (bytes_per_second > 0 ? bytes / bytes_per_second : 0));
  }
};

struct Settings {
  int devices = 0;
  int64_t memory = 0;  // bytes a device; 0: no limit
  double kernel_seconds = 0;
  double flops_per_second = 0;
  double bytes_per_second = 0;
  double launch = 0;
  Link host;
  Link peer;
  bool forgets_waits = false;
  bool forgets_record_stream = false;

  Seconds kernel_time(double flops, double bytes) const {
    double computing = flops_per_second > 0 ? flops / flops_per_second : 0;
    double moving = bytes_per_second > 0 ? bytes / bytes_per_second : 0;
    return Seconds(kernel_seconds + launch + std::max(computing, moving));
  }
};

// Everything global lives until the process ends and is never destroyed: lanes outlive the static objects of C++.
struct Shared {
  std::mutex mutex;
  Settings settings;
};

inline Shared& shared() {
  static auto* it = new Shared;
  return *it;
}

// A forked child has the memory of its parent and none of its threads: nothing may wait for a lane there, nor for a lock,
// which a thread may have held that is no more.
inline std::atomic<bool> forked{false};

inline Settings settings() {
  if (forked) {
    return shared().settings;
  }
  std::lock_guard lock(shared().mutex);
  return shared().settings;
}

inline int device_count() {
  return settings().devices;
}

// At the end of the process nobody waits for modelled time any more: those who sleep are woken up.
struct Ending {
  std::mutex mutex;
  std::condition_variable changed;
  bool now = false;

  bool at_once() {
    std::lock_guard lock(mutex);
    return now;
  }
};

inline Ending& ending() {
  static auto* it = new Ending;
  return *it;
}

inline void refuse_in_a_fork() {
  TORCH_CHECK(
      !forked,
      "the simulated device can't be used in a forked process: its streams are threads, which a fork leaves behind. "
      "Use the start method 'spawn', or keep such tensors out of the workers.");
}

}  // namespace simulated
