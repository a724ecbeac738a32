# Compiles SOURCE and compares with its first line: "// Expect: text" means that it must fail with
# that text in the diagnostics; any other first line means that it must compile.
file(STRINGS ${SOURCE} first LIMIT_COUNT 1)
execute_process(COMMAND ${COMPILER} -std=c++20 -fsyntax-only -I${CSRC} -I${TESTS}/compile_fail ${SOURCE}
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(first MATCHES "^// Expect: (.*)$")
  set(expected "${CMAKE_MATCH_1}")
  string(FIND "${output}" "${expected}" at)
  if(status EQUAL 0)
    message(FATAL_ERROR "compiled, but must fail with: ${expected}")
  elseif(at EQUAL -1)
    message(FATAL_ERROR "failed without saying: ${expected}\n${output}")
  endif()
elseif(NOT status EQUAL 0)
  message(FATAL_ERROR "must compile:\n${output}")
endif()
