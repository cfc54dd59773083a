// What every file of the shim shares: exceptions become text, and nothing else crosses the border.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

namespace fuelrail {
// The text of an error, to be freed with fr_text_free.
inline char* text_of(const char* what) {
  size_t length = std::strlen(what);
  char* text = static_cast<char*>(std::malloc(length + 1));
  if (text) std::memcpy(text, what, length + 1);
  return text;
}

// Runs `act`; returns null, or the text of what it threw.
template <class Act>
char* guarded(Act act) noexcept {
  try {
    act();
    return nullptr;
  } catch (const std::exception& error) {
    return text_of(error.what());
  } catch (...) {
    return text_of("an exception of unknown type");
  }
}
}  // namespace fuelrail
