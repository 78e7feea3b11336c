#include "thinwire/collective.h"

namespace thinwire {

const char* name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kSum:
      return "sum";
    case CollectiveKind::kMax:
      return "max";
    case CollectiveKind::kUnite:
      return "unite";
    case CollectiveKind::kGather:
      return "gather";
    case CollectiveKind::kScatter:
      return "scatter";
    case CollectiveKind::kBroadcast:
      return "broadcast";
  }
  return "unknown collective";
}

const char* name_of(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return "float32";
    case ElementType::kBfloat16:
      return "bfloat16";
    case ElementType::kFloat16:
      return "float16";
    case ElementType::kInt32:
      return "int32";
    case ElementType::kUint32:
      return "uint32";
    case ElementType::kUint8:
      return "bytes";
  }
  return "unknown elements";
}

const char* name_of(Group group) {
  switch (group) {
    case Group::kAll:
      return "all";
    case Group::kWithinHost:
      return "host";
    case Group::kBetweenHosts:
      return "between";
  }
  return "unknown group";
}

}  // namespace thinwire
