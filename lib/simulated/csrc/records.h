// What lanes write down for others to read: spans while somebody profiles, and the first error of each device.
#pragma once

#include "settings.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

namespace simulated {

// ---- what a lane has done, written down while somebody profiles

struct Span {
  DeviceIndex device;
  int64_t stream;
  std::string kind;  // "compute", "copy" or "wait"
  std::string label;
  Time start;
  Time end;
};

struct Profile {
  std::mutex mutex;
  bool on = false;
  std::vector<Span> spans;
  int64_t tasks = 0;
  int64_t overruns = 0;      // tasks for which the CPU took longer than their modelled time
  Seconds latest{0};         // how far behind its own clock a lane was at worst

  void add(Span span) {
    std::lock_guard lock(mutex);
    if (on) {
      spans.push_back(std::move(span));
    }
  }
};

inline Profile& profile() {
  static auto* it = new Profile;
  return *it;
}

// ---- errors: a kernel fails long after its call has returned; the next synchronisation says so

struct Errors {
  std::mutex mutex;
  std::array<std::string, MOST_DEVICES> first;
};

inline Errors& errors() {
  static auto* it = new Errors;
  return *it;
}

inline void remember_error(DeviceIndex device, const std::string& text) {
  std::lock_guard lock(errors().mutex);
  auto& first = errors().first[device];
  if (first.empty()) {  // what fails after it fails because of it
    first = text;
  }
}

inline void raise_error_of(DeviceIndex device) {
  std::string text;
  {
    std::lock_guard lock(errors().mutex);
    text.swap(errors().first[device]);
  }
  TORCH_CHECK(text.empty(), text);
}

}  // namespace simulated
